"""Which values of a program are still computed under a plan, which are empty, and which have become constants.

An operator whose result has an empty axis is not run. A contraction over an empty axis returns its bias, and everything that is
computed from constants alone is a constant. This is how a residual block is removed. A cut after which the output no longer
depends on the input is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gator.errors import KeptError
from gator.graph.macs import macs
from gator.graph.program import Call, Mode, Ref, needed
from gator.surgery.plan import Plan

aten = torch.ops.aten

# Sums over an empty axis: the result is zero, or the bias.
CONTRACTIONS = (
    aten.linear, aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution, aten.conv_transpose1d, aten.conv_transpose2d,
    aten.conv_transpose3d, aten.matmul, aten.mm, aten.bmm, aten.mv, aten.dot, aten.addmm, aten.baddbmm, aten.einsum,
    aten.bilinear, aten.sum, aten.linalg_vector_norm,
)  # fmt: skip
DROPOUTS = (aten.dropout, aten.dropout_, aten.feature_dropout, aten.feature_dropout_, aten.alpha_dropout)


@dataclass(frozen=True)
class Liveness:
    """What becomes of the values and calls of one program under a plan."""

    empty: frozenset[int]  # values with an empty axis
    folded: frozenset[int]  # values that depended on the input before and are constants now
    emptied_sum: frozenset[int]  # calls that sum over an empty axis
    live: frozenset[int]  # calls whose result is needed


def liveness_of(plan: Plan, mode: Mode) -> Liveness:
    """What becomes of the values of the program of one mode."""
    labelled = plan.graph.of(mode)
    program = labelled.program
    without_data = {value.id for value in program.values if 0 in value.shape}  # in the original network
    empty = frozenset(v for v in labelled.axes if 0 in plan.shape(mode, v)) - without_data
    before: set[int] = set(program.inputs)  # values that depend on an input, before the cut and after it
    after: set[int] = set(program.inputs)
    written_views = _written_through_views(plan, mode)
    emptied_sum = set()
    for call in program.calls:
        outputs = [v for v in call.outputs if v is not None]
        random = call.draws and call.packet not in DROPOUTS
        args = [v for _, v in call.tensors()]
        if random or any(v in before and v not in without_data for v in args):
            before.update(outputs)
        if all(v in empty for v in outputs) and outputs:
            continue
        if _sums_over_empty_axis(plan, mode, call):
            emptied_sum.add(call.index)
            args = [call.value_at("self")] if call.packet in (aten.addmm, aten.baddbmm) else []
        reaches = any(v in after and v not in empty and v not in without_data for v in args)
        if random or reaches or any(v in before & written_views for v in outputs):
            after.update(outputs)
    folded = frozenset(before - after - empty)
    return Liveness(empty, folded, frozenset(emptied_sum), needed(program, gone=empty | folded))


def _written_through_views(plan: Plan, mode: Mode) -> set[int]:
    """Values whose memory is written through another view: they are not turned into constants."""
    program = plan.graph.of(mode).program
    written = {program.values[c.mutates].storage for c in program.calls if c.mutates is not None}
    made_by_write = {v for c in program.calls if c.mutates is not None for v in c.outputs}
    views: dict[int, list[int]] = {}
    for value in program.values:
        if value.storage in written:
            views.setdefault(value.storage, []).append(value.id)
    return {v for group in views.values() if sum(v not in made_by_write for v in group) > 1 for v in group}


def _sums_over_empty_axis(plan: Plan, mode: Mode, call: Call) -> bool:
    """Whether the call sums over an axis that keeps no channel. Raises KeptError if the operator needs at least one."""
    labelled = plan.graph.of(mode)
    for read in labelled.reads.get(call.index, ()):
        labels = labelled.axes[call.value_at(read.argument)][read.axis]
        mask = plan.alive(labels)
        if mask is None or mask.any():
            continue
        if call.packet in CONTRACTIONS:
            return True
        if all(v is None or 0 in plan.shape(mode, v) for v in call.outputs):
            continue
        edge = plan.edge_at(labels)
        raise KeptError(
            f"edge {edge!r} cannot lose all its channels: {call.where()} needs at least one of them\n"
            "  Keep one unit, or fix the edge with trace(..., fixed=[...]).",
            edge,
        )
    return False


def check_connected(plan: Plan, mode: Mode, liveness: Liveness) -> None:
    """Raise KeptError, naming the edge, if an output no longer depends on any input."""
    labelled = plan.graph.of(mode)
    for leaf in labelled.program.outputs[0]:
        if isinstance(leaf, Ref) and (leaf.id in liveness.folded or leaf.id in liveness.empty):
            calls = [c for c in labelled.program.calls if c.index in liveness.emptied_sum]
            edge = _emptied_edge(plan, mode, calls[-1]) if calls else plan.emptied[0]
            raise KeptError(
                f"this cut would disconnect the output from the input: edge {edge!r} keeps no channel\n"
                "  Keep at least one unit of it.",
                edge,
            )


def _emptied_edge(plan: Plan, mode: Mode, call: Call) -> str:
    """The edge without channels that a call sums over."""
    labelled = plan.graph.of(mode)
    for read in labelled.reads[call.index]:
        labels = labelled.axes[call.value_at(read.argument)][read.axis]
        mask = plan.alive(labels)
        if mask is not None and not mask.any():
            return plan.edge_at(labels)
    return "?"


def macs_left(plan: Plan) -> int:
    """Multiply-adds of the cut network in eval mode, for the example inputs."""
    program = plan.graph.eval.program
    live = liveness_of(plan, "eval").live
    total = sum(macs(call, lambda v: plan.shape("eval", v)) for call in program.calls if call.index in live)
    given = plan.graph.inputs.batch
    return total * given // program.batch if program.batch and given else total
