"""What recording assumes where a network looks at the data of a tensor to decide what to compute.

A decision by a random draw (LayerDrop, stochastic depth) is recorded with the lowest and with the highest draw, and the
recording that keeps more layers is taken. Activations are taken to be finite, because networks check this only to repair an
overflow in half precision. Checks that would raise an error are taken to pass. Nothing else is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from gator.errors import TraceError
from gator.graph.program import MODES, Call, Program, Value, needed, same_calls

aten = torch.ops.aten
Draw = Literal["lowest", "highest"]
Reason = Literal["", "draw", "finite"]  # why the data of a tensor is assumed; "" if nothing has to be said about it
_BELOW_ONE = 1 - 2**-24  # the highest draw in float32


@dataclass(frozen=True)
class Assumed:
    """The data that a tensor is assumed to have, and why."""

    data: torch.Tensor
    reason: Reason


def assumed(func: Any, named: dict[str, Any], result: torch.Tensor, draw: Draw) -> Assumed | None:
    """The data that the result of a call is assumed to have; None for most calls, whose results nobody may look at."""
    packet = func.overloadpacket
    if packet in _RANGES:
        return Assumed(_filled(result, _RANGES[packet](named)[0 if draw == "lowest" else 1]), "draw")
    if packet in _FINITE:
        return Assumed(_filled(result, _FINITE[packet]), "finite")
    return Assumed(_filled(result, 1), "") if packet is aten._is_all_true else None


def is_finiteness_test(func: Any) -> bool:
    return func.overloadpacket in _FINITE


def _filled(result: torch.Tensor, value: float) -> torch.Tensor:
    return torch.full((), value, dtype=result.dtype).expand(result.shape)


_RANGES: dict[Any, Callable[[dict[str, Any]], tuple[float, float]]] = {
    aten.rand: lambda _: (0, _BELOW_ONE),
    aten.rand_like: lambda _: (0, _BELOW_ONE),
    aten.uniform_: lambda named: (named.get("from", 0), named.get("to", 1)),
    aten.uniform: lambda named: (named.get("from", 0), named.get("to", 1)),
    aten.randint: lambda named: (named.get("low", 0), named["high"] - 1),
    aten.bernoulli: lambda _: (0, 1),
    aten.bernoulli_: lambda _: (0, 1),
}
_FINITE: dict[Any, int] = {aten.isfinite: 1, aten.isinf: 0, aten.isnan: 0}


def depends_on_weights(value: int, calls: Sequence[Call], values: Sequence[Value]) -> bool:
    """Whether a value is an activation: computed from a floating-point parameter. A mask is not, and may hold infinities."""
    maker = {out: call for call in calls for out in call.outputs if out is not None}
    open_, seen = [value], {value}
    while open_:
        at = open_.pop()
        if values[at].origin == "attribute" and values[at].dtype.is_floating_point:
            return True
        if at in maker:
            found = {v for _, v in maker[at].tensors()} - seen
            seen |= found
            open_.extend(found)
    return False


def with_more_layers(high: Program, low: Program) -> Program:
    """The recording that keeps more layers, of two that differ in the random draws; it says so in its notes.

    Raises TraceError if the draws decide anything else.
    """
    if same_calls(high, low) and high.outputs == low.outputs:
        return replace(high, decided_by_draws=())
    above, below = _used(high), _used(low)
    if above == below or not (above <= below or below <= above):
        raise TraceError(
            "a random draw decides what the network computes, other than whether a layer is left out\n"
            f"  at {high.decided_by_draws[0]}\n"
            "  Set its probability to 0 before tracing; for a layer that is drawn at random, trace each choice by itself."
        )
    kept = high if below < above else low
    layer, place = _owner(min(above ^ below)), kept.decided_by_draws[0]
    note = (
        f"in {MODES[0 if kept.training else 1]} mode a random draw leaves out {layer} at {place}: "
        "a cut network in graph form never leaves it out"
    )
    return replace(kept, notes=(*kept.notes, note))


def _used(program: Program) -> frozenset[str]:
    """The parameters and buffers that the outputs depend on."""
    live = needed(program)
    values = {v for call in program.calls if call.index in live for _, v in call.tensors()}
    return frozenset(program.values[v].name for v in values if program.values[v].origin == "attribute")


def _owner(name: str) -> str:
    return name.rpartition(".")[0] or name
