"""Put gates on a model and take them off again, leaving no trace.

While attached, `model.forward` is replaced: in train mode by the network with gates, in eval mode by the network as if the
closed channels were removed. Gates are not parameters of the model and not in its state_dict.
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
from gator.gates.emit_gated import GatedEmitter
from gator.gates.gate import Gates
from gator.gates.settings import Per
from gator.gates.sites import drawn_together, sites_of
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import BatchInt
from gator.graph.replaced_forward import ReplacedForward
from gator.graph.trace import sizes_free
from gator.surgery.cut_network import Signature
from gator.surgery.masked import MaskedForward, signature_of
from gator.surgery.plan import Plan
from gator.surgery.slice import canonical_names


class GatedForward(ReplacedForward):
    """Replaces a model's forward. `last` holds the gates that the latest forward with gradients has drawn."""

    def __init__(
        self, model: nn.Module, graph: Hypergraph, per: Per, gated: frozenset[int], temperature: float, *, second_order: bool
    ) -> None:
        self.model = model
        self._second_order = second_order  # whether gates learn from second derivatives too
        self.graph = graph
        self.per, self.gated = per, gated
        self.noisy = True  # False: training goes on without drawing gates, with the closed channels removed
        self.last: Tensor | None = None
        reference = next((p for p in model.parameters() if p.dtype.is_floating_point), None)
        if reference is None:
            raise GatorError("this network has no floating-point parameters, so there is nothing to learn")
        self._sites = sites_of(graph, "train", per, gated)
        self.gates = Gates(
            graph,
            device=reference.device,
            dtype=torch.float64 if reference.dtype == torch.float64 else torch.float32,
            shared=drawn_together(self._sites, graph),
            temperature=temperature,
        )
        self._free = sizes_free(graph, model)
        self.before = model.__dict__.get("forward")
        self.original: Any = model.forward
        self._batched = self._batched_input()
        self._emptied: tuple[str, ...] | None = None  # the edges that the gated graph was written without
        self.refresh()

    def _batched_input(self) -> int | None:
        """Which flat input tells how many examples there are; None if the network is bound to one batch size."""
        program = self.graph.train.program
        shapes = [program.values[value].shape for value in program.inputs]
        found = next((i for i, shape in enumerate(shapes) if shape and isinstance(shape[0], BatchInt)), None)
        if found is None and self.per == "example":
            raise GatorError(
                'per="example" needs a network that runs at any batch size, and this one runs only at that of the example '
                'inputs\n  Pass per="batch" (one draw per forward), or make the batch size free in forward.'
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
        self._masked = MaskedForward(self.model, plan, free=self._free, forward=self.original)
        emptied = {name: mask for name, mask in kept.items() if not mask.any()}
        names = tuple(sorted(emptied))
        if self._emptied != names:
            self._emptied = names
            self._plan = Plan(self.graph, emptied)
            self._signature: Signature = signature_of(self.original, self._plan, free=self._free)
            self._trained = self._gated_graph()

    def _gated_graph(self) -> fx.GraphModule:
        emitter = GatedEmitter(self._plan, "train", self.model, canonical_names(self.model), self._sites, len(self.gates))
        graph = emitter.emit()
        return fx.GraphModule(emitter.objects, graph)

    def __deepcopy__(self, memo: dict[int, Any]) -> GatedForward:
        new = GatedForward.__new__(GatedForward)
        memo[id(self)] = new
        # A draw belongs to the forward that made it.
        new.__dict__ = {k: copy.deepcopy(v, memo) for k, v in self.__dict__.items() if k != "last"} | {"last": None}
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise GatorError(
            "a model with gates on cannot be pickled (torch.save of the whole module does that)\n"
            "  Save model.state_dict() and pruner.state_dict(), or pruner.cut() with gator.save."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.model.training and self.noisy):
            if torch.is_grad_enabled():
                self.last = None  # the draw of an earlier forward must not enter this loss
            return self.original(*args, **kwargs) if self._whole else self._masked(*args, **kwargs)
        flat = self._signature.flatten(args, kwargs)
        if flat[0].device != self.gates.logits.device:
            raise GatorError(
                f"the inputs are on {flat[0].device}, the gates on {self.gates.logits.device}\n"
                "  Move the model to its device first, then make the pruner."
            )
        examples = 1 if self._batched is None else flat[self._batched].shape[0]
        rows = examples if self.per == "example" else 1
        drawn, used = self.gates.draw(rows, examples if self._second_order else None)
        if torch.is_grad_enabled():
            self.last = drawn
        gates = torch.cat([used, used.new_ones(rows, 1)], 1)
        return self._signature.unflatten(self._trained(gates, *flat), True)


def is_attached(forward: GatedForward) -> bool:
    """Whether the model runs this forward, directly or inside something that has wrapped it since."""
    found = forward.model.__dict__.get("forward")
    return found is forward or not (found is forward.before or isinstance(found, GatedForward))


def attach(forward: GatedForward) -> None:
    forward.model.forward = forward


def detach(forward: GatedForward) -> bool:
    """Take the gates off; returns whether they were on."""
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


@contextmanager
def gates_off(forward: GatedForward) -> Iterator[None]:
    """The model has no gates inside the block; afterwards it is as before."""
    was_on = detach(forward)
    try:
        yield
    finally:
        if was_on:
            attach(forward)
