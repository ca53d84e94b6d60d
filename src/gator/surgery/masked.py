"""`masked`: the model computes without the removed channels, while all its weights stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from gator.errors import GatorError
from gator.graph.hypergraph import SavedGraph
from gator.graph.program import MODES, Mode
from gator.graph.reachable import unreachable
from gator.graph.replaced_forward import ReplacedForward, has_replaced_forward
from gator.graph.trace import retraced, sizes_free
from gator.surgery.cut_network import Signature
from gator.surgery.emit import is_native
from gator.surgery.emit_masked import MaskedEmitter
from gator.surgery.liveness import check_connected, liveness_of
from gator.surgery.masked_reader import masked_reader
from gator.surgery.own_forward import OwnForward
from gator.surgery.plan import Kept, Plan
from gator.surgery.readers import ModuleReaders
from gator.surgery.slice import canonical_names


class MaskedForward(ReplacedForward):
    """Runs the recording of a model without the removed channels; the graph of a mode is built when it first runs."""

    def __init__(self, model: nn.Module, plan: Plan, *, free: bool, forward: Callable[..., Any] | None = None) -> None:
        self._model = model
        self._plan = plan
        self._signature = signature_of(forward or model.forward, plan, free=free)
        self._built: dict[bool, fx.GraphModule] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        training = self._model.training
        if training not in self._built:
            self._built[training] = self._build("train" if training else "eval")
        return self._signature.unflatten(self._built[training](*self._signature.flatten(args, kwargs)), training)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _build(self, mode: Mode) -> fx.GraphModule:
        emitter = MaskedEmitter(self._plan, mode, self._model, canonical_names(self._model))
        graph = emitter.emit()
        return fx.GraphModule(emitter.objects, graph)


def masked_readers(own: OwnForward, plan: Plan, mode: Mode) -> dict[str, ModuleReaders]:
    """The readers of a model's own forward under a plan."""
    liveness = liveness_of(plan, mode)
    found = {call.index: masked_reader(plan, mode, liveness, call) for call in own.calls[mode]}
    return own.readers(mode, {index: reader for index, reader in found.items() if reader is not None})


class _MaskedOwnForward(OwnForward):
    """The own forward of a model under one plan."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        super().__init__(model, plan.graph, self._of_mode)
        self._plan = plan
        self._found: dict[Mode, dict[str, ModuleReaders]] = {}

    def _of_mode(self) -> dict[str, ModuleReaders]:
        mode: Mode = "train" if self.model.training else "eval"
        if mode not in self._found:
            self._found[mode] = masked_readers(self, self._plan, mode)
        return self._found[mode]


@contextmanager
def masked(model: nn.Module, graph: SavedGraph, kept: Kept) -> Iterator[nn.Module]:
    """Inside the block `model` computes with the kept channels only; afterwards it is restored.

    Args:
        model: the network; its parameters are not changed.
        graph: of this model, from `gator.trace` (or read from JSON: then the model is traced again).
        kept: by edge name, the indices or a boolean mask of the channels to keep; edges that are not named keep all.

    Raises:
        KeptError: if `kept` does not fit the graph, or would disconnect the output from the input.

    Examples:
        >>> with gator.masked(model, graph, {"stem": [0, 1, 2]}):
        ...     expected = model(x)
    """
    if has_replaced_forward(model):
        raise GatorError("this model has a mask or gates on: leave the other masked() block, or detach() its pruner, first")
    plan = Plan(retraced(graph, model), kept)
    with masked_by(plan, model, free=sizes_free(plan.graph, model)):
        yield model


@contextmanager
def masked_by(plan: Plan, model: nn.Module, *, free: bool = False) -> Iterator[None]:
    """Like `masked`, with a plan. `free` allows a recording inputs of other sizes than the traced one."""
    for mode in MODES:
        check_plan(plan, mode)
    if not unreachable(plan.graph):
        own = _MaskedOwnForward(model, plan)
        own.attach()
        try:
            yield
        finally:
            own.detach()
        return
    before = model.__dict__.get("forward")  # Accelerate and others assign their own
    forward = MaskedForward(model, plan, free=free)
    try:
        model.forward = forward
        yield
    finally:
        if before is None:
            del model.forward
        else:
            model.forward = before


def signature_of(forward: Callable[..., Any], plan: Plan, *, free: bool, bound: str = "") -> Signature:
    structures = (labelled.program.outputs[1] for labelled in plan.graph.programs)
    train, evaluate = (None if is_native(structure) else structure for structure in structures)
    return Signature(forward, plan.graph.inputs, (train, evaluate), free=free, bound=bound)


def check_plan(plan: Plan, mode: Mode) -> None:
    """Raise KeptError if no network can have the kept channels."""
    check_connected(plan, mode, liveness_of(plan, mode))
