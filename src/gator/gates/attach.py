"""Put gates on a model and take them off again, leaving no trace.

While attached, the layers that read an edge read it through the gates in train mode, and without its closed channels in eval
mode; the model runs its own forward. If a reader cannot be reached there (`graph/reachable.py`), `model.forward` is replaced by
a recording of the network instead. Gates are not parameters of the model and not in its state_dict.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from gator.errors import GatorError
from gator.gates.drawn_gates import DrawnGates
from gator.gates.emit_gated import GatedEmitter
from gator.gates.gate import Gates
from gator.gates.gated_reader import Draw, GatedReader
from gator.gates.open_gates import OpenGates
from gator.gates.settings import GateSettings
from gator.gates.sites import drawn_together, sites_of
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import BatchInt, Call, Mode
from gator.graph.reachable import unreachable
from gator.graph.replaced_forward import ReplacedForward
from gator.graph.trace import sizes_free
from gator.surgery.cut_network import Signature
from gator.surgery.liveness import liveness_of
from gator.surgery.masked import MaskedForward, masked_readers, signature_of
from gator.surgery.masked_reader import masked_reader
from gator.surgery.own_forward import OwnForward, own_forward_of
from gator.surgery.plan import Plan
from gator.surgery.readers import ModuleReaders, Reader
from gator.surgery.slice import canonical_names


class GatedForward(ReplacedForward):
    """How a model runs with gates. `last` holds the gates of the latest forward with gradients."""

    def __init__(
        self, model: nn.Module, graph: Hypergraph, settings: GateSettings, gated: frozenset[int], *, drawn: bool
    ) -> None:
        self.model = model
        self.graph = graph
        self.per, self.gated = settings.per, gated
        self.learning = True  # False: training goes on without gates, with the closed channels removed
        self.last: Tensor | None = None
        reference = next((p for p in model.parameters() if p.dtype.is_floating_point), None)
        if reference is None:
            raise GatorError("this network has no floating-point parameters, so there is nothing to learn")
        self._sites = sites_of(graph, "train", self.per, gated)
        device, dtype = reference.device, torch.float64 if reference.dtype == torch.float64 else torch.float32
        shared = drawn_together(self._sites, graph)
        self.gates: Gates = (
            DrawnGates(graph, settings, device=device, dtype=dtype, shared=shared)
            if drawn
            else OpenGates(graph, device=device, dtype=dtype, shared=shared)
        )
        self.before = model.__dict__.get("forward")
        self.original: Any = model.forward
        self.unreachable: list[Call] = unreachable(graph)
        self.own = None if self.unreachable else OwnForward(model, graph, self._readers_now, self._start)
        self._free = self.own is not None or sizes_free(graph, model)
        self._batched = self._batched_input()
        shapes = (graph.train.program.values[value].shape for value in graph.train.program.inputs)
        self._examples = next((int(shape[0]) for shape in shapes if shape), 1)  # of a network bound to one batch size
        self._signature: Signature = signature_of(self.original, Plan(graph, {}), free=self._free)
        self._draw: Draw | None = None
        self._emptied: tuple[str, ...] | None = None  # the edges that the gated readers were made without
        self.refresh()

    def _batched_input(self) -> int | None:
        """Which flat input tells how many examples there are; None if the network is bound to one batch size."""
        program = self.graph.train.program
        shapes = [program.values[value].shape for value in program.inputs]
        found = next((i for i, shape in enumerate(shapes) if shape and isinstance(shape[0], BatchInt)), None)
        if found is None and self.per == "example":
            raise GatorError(
                'per="example" needs a network that runs at any batch size, and this one runs only at that of the example '
                'inputs\n  Pass per="batch" (one set of gates per forward), or make the batch size free in forward.'
            )
        return found

    def kept(self) -> dict[str, np.ndarray[Any, Any]]:
        """The living channels of the edges that have lost some."""
        return self.graph.masks_of(self.gates.living())

    def refresh(self) -> None:
        """Rebuild what depends on the closed channels."""
        kept = self.kept()
        plan = Plan(self.graph, kept)
        self._whole = not kept
        self._plan = plan
        self._masked: dict[Mode, dict[str, ModuleReaders]] = {}
        self._recording = (
            None if self.own is not None else MaskedForward(self.model, plan, free=self._free, forward=self.original)
        )
        emptied = {name: mask for name, mask in kept.items() if not mask.any()}
        names = tuple(sorted(emptied))
        if self._emptied != names:
            self._emptied = names
            self._gate(Plan(self.graph, emptied))

    def _gate(self, emptied: Plan) -> None:
        """Make the gated readers; behind an edge that is closed altogether the network takes another form, a constant."""
        program, liveness = self.graph.train.program, liveness_of(emptied, "train")
        readers: dict[int, Reader] = {}
        gated: dict[int, GatedReader] = {}
        for call in program.calls:
            masked = masked_reader(emptied, "train", liveness, call)
            sites = self._sites.get(call.index)
            if sites:
                gated[call.index] = GatedReader(call, sites, program, self.gates.starts, masked, self._drawn)
            if masked is not None or sites:
                readers[call.index] = gated.get(call.index) or masked  # type: ignore[assignment]
        if self.own is not None:
            self._gated_readers = self.own.readers("train", readers)
        else:
            emitter = GatedEmitter(emptied, "train", self.model, canonical_names(self.model), gated)
            graph = emitter.emit()
            self._trained = fx.GraphModule(emitter.objects, graph)

    def __deepcopy__(self, memo: dict[int, Any]) -> GatedForward:
        new = GatedForward.__new__(GatedForward)
        memo[id(self)] = new
        # A draw belongs to the forward that made it.
        new.__dict__ = {k: copy.deepcopy(v, memo) for k, v in self.__dict__.items() if k not in ("last", "_draw")}
        new.last = new._draw = None
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise GatorError(
            "a model with gates on cannot be pickled (torch.save of the whole module does that)\n"
            "  Save model.state_dict() and pruner.state_dict(), or pruner.cut() with gator.save."
        )

    @property
    def _draws(self) -> bool:
        """Whether a forward goes through gates now."""
        return self.model.training and self.learning

    def _readers_now(self) -> dict[str, ModuleReaders] | None:
        if self._draws:
            return self._gated_readers
        mode: Mode = "train" if self.model.training else "eval"
        if not self._whole and mode not in self._masked:
            assert self.own is not None
            self._masked[mode] = masked_readers(self.own, self._plan, mode)
        return self._masked.get(mode)

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a forward: its gates are drawn now, or by the first reader if the arguments do not tell the batch size."""
        if self._draws:  # an eval forward keeps the draw: a checkpoint of the forward before may be recomputed later
            self.forget_draw()
            x = self._signature.tensor_at(self._batched or 0, args, kwargs)
            if x is not None:
                self._make_draw(None if self._batched is None else x.shape[0], x.device)
        elif torch.is_grad_enabled():
            self.last = None  # the draw of an earlier forward must not enter this loss

    def forget_draw(self) -> None:
        """The next reader draws anew."""
        self._draw = None

    def _drawn(self, examples: int | None) -> Draw:
        """The gates of this forward, for a reader that sees so many examples."""
        if self._draw is None:
            self._make_draw(examples, None)
        assert self._draw is not None
        rows = len(self._draw.gates)
        if self.per == "example" and examples is not None and examples != rows:
            raise GatorError(
                f"a layer sees {examples} examples in a forward whose gates are for {rows}\n"
                '  Pass the whole batch through the model at once, or pass per="batch" (one set of gates per forward).'
            )
        return self._draw

    def _make_draw(self, examples: int | None, device: torch.device | None) -> None:
        if device is not None and device != self.gates.device:
            raise GatorError(
                f"the inputs are on {device}, the gates on {self.gates.device}\n"
                "  Move the model to its device first, then make the pruner."
            )
        if examples is None and self.per == "example":
            raise GatorError(
                "the batch size cannot be told from the arguments of this forward\n"
                '  Pass per="batch" (one set of gates per forward).'
            )
        rows = (examples or 1) if self.per == "example" else 1
        gates = self.gates.of_forward(rows, examples or self._examples)
        if torch.is_grad_enabled():
            self.last = gates
        self._draw = Draw(gates, self.gates, examples or self._examples)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The recording of the network, with gates in train mode."""
        assert self._recording is not None
        if not self._draws:
            if torch.is_grad_enabled():
                self.last = None
            return self.original(*args, **kwargs) if self._whole else self._recording(*args, **kwargs)
        flat = self._signature.flatten(args, kwargs)
        self._make_draw(None if self._batched is None else flat[self._batched].shape[0], flat[0].device)
        return self._signature.unflatten(self._trained(*flat), True)


def is_attached(forward: GatedForward) -> bool:
    """Whether the gates are on."""
    if forward.own is not None:
        return forward.own.attached
    found = forward.model.__dict__.get("forward")
    return found is forward or not (found is forward.before or isinstance(found, GatedForward))


def attach(forward: GatedForward) -> None:
    if forward.own is not None:
        forward.own.attach()
    else:
        forward.model.forward = forward


def detach(forward: GatedForward) -> bool:
    """Take the gates off; returns whether they were on."""
    if forward.own is not None:
        was_on = forward.own.attached
        if was_on:
            forward.own.detach()
        return was_on
    found = forward.model.__dict__.get("forward")
    if found is forward:
        if forward.before is None:
            del forward.model.forward
        else:
            forward.model.forward = forward.before
        return True
    if found is not forward.before:
        raise GatorError(
            "something else has replaced model.forward since the gates were put on, so they cannot be taken off\n"
            "  Undo it first: accelerator.unwrap_model(model, keep_fp32_wrapper=False) for Accelerate's mixed precision."
        )
    return False


def take_gates_off(model: nn.Module) -> None:
    """Take the gates off a model that was copied with gates on; nothing for one without."""
    if isinstance(model.__dict__.get("forward"), GatedForward):
        del model.forward
    own = own_forward_of(model)
    if own is not None:
        own.detach()


@contextmanager
def gates_off(forward: GatedForward) -> Iterator[None]:
    """The model has no gates inside the block; afterwards it is as before."""
    was_on = detach(forward)
    try:
        yield
    finally:
        if was_on:
            attach(forward)
