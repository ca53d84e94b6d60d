"""Compare the calls that a sliced copy of the user's class makes with the calls that the plan expects, in train and eval mode.

Outputs can agree by chance (a saturated output, one huge value, a batch of one). If the operators, the sizes and the settings
are the same, the functions are the same. This finds a scale that is computed from a width, or a hard-coded slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from gator.errors import TraceError
from gator.graph.program import Call, Mode, Program, Ref
from gator.graph.record_forward import record_once
from gator.graph.rules import has_rule
from gator.graph.rules.creation import PATTERNED
from gator.surgery.attributes import get_attribute, set_attributes_
from gator.surgery.plan import Plan
from gator.surgery.sizes import Cutting, dim_of, new_arguments, positions, selected_positions, size_arguments

aten = torch.ops.aten
_LAYOUT = (aten.contiguous,)


def class_differs(sliced: nn.Module, plan: Plan) -> str:
    """Where the sliced class does not do what the plan expects, in eval or train mode; empty if it does."""
    modes: tuple[Mode, ...] = ("eval",) if _same_in_both_modes(plan) else ("eval", "train")
    for mode in modes:
        expected = plan.graph.of(mode).program
        batch = expected.batch or plan.graph.inputs.batch
        try:
            found = record_once(
                sliced, plan.graph.inputs, has_rule, training=mode == "train", batch=batch, fold=expected.folded
            )
        except TraceError as error:
            return f"in {mode} mode {error}"
        cutting = Cutting(plan, mode)
        for one, other in zip_longest(_computing(expected), _computing(found)):
            if one is None or other is None or one.op is not other.op:
                return f"in {mode} mode it runs different operators, first at {(one or other).where()}"
            if not _same(cutting, one, other, found):
                return f"in {mode} mode it runs with different arguments at {one.where()}"
    return ""


def _computing(program: Program) -> Iterator[Call]:
    """All calls but those that only change the layout in memory: an axis of size one, a single head for example, needs none."""
    return (call for call in program.calls if call.packet not in _LAYOUT)


def fitting_attributes_(sliced: nn.Module, plan: Plan, candidates: list[dict[str, int]]) -> dict[str, int] | None:
    """Those attributes with which the sliced class does what the plan expects, set in it; None if there are none.

    Of every candidate all attributes are tried, then all but those of one name, because one may be no size at all. Beyond the
    first candidate only what the class needs is changed.
    """
    for attributes in candidates:
        before = {name: get_attribute(sliced, name) for name in attributes}
        for left_out in (None, *_last_parts(attributes)):
            chosen = _without(attributes, left_out)
            set_attributes_(sliced, chosen)
            if not class_differs(sliced, plan):
                return (
                    chosen
                    if attributes is candidates[0]
                    else _needed_(sliced, plan, chosen, before, _last_parts(candidates[0]))
                )
            set_attributes_(sliced, before)
    return None


def _needed_(
    sliced: nn.Module, plan: Plan, chosen: dict[str, int], before: dict[str, int], kept: Iterable[str]
) -> dict[str, int]:
    """Those of the attributes that the class does not work without, and those with a name in `kept`."""
    for name in _last_parts(chosen):
        fewer = _without(chosen, name)
        if name not in kept:
            set_attributes_(sliced, before)
            set_attributes_(sliced, fewer)
            chosen = chosen if class_differs(sliced, plan) else fewer
    set_attributes_(sliced, before)
    set_attributes_(sliced, chosen)
    return chosen


def _last_parts(attributes: dict[str, int]) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[2] for name in attributes))


def _without(attributes: dict[str, int], last_part: str | None) -> dict[str, int]:
    return {name: value for name, value in attributes.items() if name.rpartition(".")[2] != last_part}


def _same_in_both_modes(plan: Plan) -> bool:
    """Whether train mode runs the same calls as eval mode, apart from flags and batch counters."""

    def calls(mode: Mode) -> list[Any]:
        program = plan.graph.of(mode).program
        counters = {v.id for v in program.values if v.origin == "attribute"}
        return [call for call in program.calls if call.mutates not in counters]

    one, other = calls("train"), calls("eval")
    flags = ("training", "train", "use_input_stats")
    return len(one) == len(other) and all(
        a.op is b.op and all(name in flags or _equal(arg, b.args.get(name)) for name, arg in a.args.items())
        for a, b in zip(one, other, strict=True)
    )


def _same(cutting: Cutting, one: Call, other: Call, found: Program) -> bool:
    for value, result in zip(one.outputs, other.outputs, strict=True):
        if value is not None and result is not None and cutting.after(value) != found.values[result].shape:
            return False
    sizes = size_arguments(one.packet)
    checked_elsewhere = (*sizes.implied_by_shapes, *sizes.positions)
    for name in one.args.keys() | other.args.keys():
        if name not in checked_elsewhere and not _equal(one.args.get(name), other.args.get(name)):
            return False
    return _same_positions(cutting, one, other) if cutting.touches(one) else True


def _equal(one: Any, other: Any) -> bool:
    """Whether two arguments are equal; all tensors count as equal."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, Ref) or isinstance(other, Ref):
        return isinstance(one, Ref) and isinstance(other, Ref)
    same: bool = one == other
    return same


def _same_positions(cutting: Cutting, one: Call, other: Call) -> bool:
    """Compare the positions that a call selects, which the shapes do not show."""
    named = size_arguments(one.packet).positions
    if named:
        source = one.value_at("self")
        expected = selected_positions(cutting, one)
        if expected is None:
            return all(_equal(one.args.get(name), other.args.get(name)) for name in named)
        size = int(cutting.after(source)[dim_of(one, len(cutting.before(source)))])
        found: list[int] = list(range(size))[positions(other, size)]
        return bool(expected.tolist() == found)
    if one.packet is aten.constant_pad_nd:
        return bool(new_arguments(cutting, one)["pad"] == [int(p) for p in other.args["pad"]])
    if one.packet is aten.scaled_dot_product_attention:
        query = one.value_at("query")
        return bool(cutting.after(query)[-1] == cutting.before(query)[-1]) or one.args.get("scale") is not None
    if one.packet in PATTERNED:
        return False
    moves = cutting.labelled.moves.get(one.index, {})
    return all(cutting.alive(one.value_at("self"), source) is None for source, _ in moves.values())
