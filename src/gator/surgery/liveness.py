"""What becomes of every value under a plan: still computed, empty, or constant because what fed it is gone.

An operator whose result has an empty axis is not run. A contraction over an empty axis gives its bias, and what follows
from that alone is a constant. This is how a residual block disappears.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gator.errors import KeptError
from gator.graph.macs import macs
from gator.graph.program import Call, Mode, Ref, needed
from gator.surgery.plan import Plan

aten = torch.ops.aten

# Sums that are zero (or their bias) when there is nothing to sum over.
CONTRACTIONS = (
    aten.linear, aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution, aten.conv_transpose1d, aten.conv_transpose2d,
    aten.conv_transpose3d, aten.matmul, aten.mm, aten.bmm, aten.mv, aten.dot, aten.addmm, aten.baddbmm, aten.einsum,
    aten.bilinear, aten.sum, aten.linalg_vector_norm,
)  # fmt: skip
DROPOUTS = (aten.dropout, aten.dropout_, aten.feature_dropout, aten.feature_dropout_, aten.alpha_dropout)


@dataclass(frozen=True)
class Fate:
    """The fate of every value of one program."""

    empty: frozenset[int]
    folded: frozenset[int]  # depended on the input, and does no longer
    emptied_sum: frozenset[int]  # calls that sum over nothing
    live: frozenset[int]  # calls whose result is needed


def decide(plan: Plan, mode: Mode) -> Fate:
    labelled = plan.graph.of(mode)
    program = labelled.program
    empty = frozenset(v for v in labelled.axes if 0 in plan.shape(mode, v))
    before: set[int] = set(program.inputs)
    after: set[int] = set(program.inputs)
    pinned = _pinned(plan, mode)
    emptied_sum = set()
    for call in program.calls:
        outputs = [v for v in call.outputs if v is not None]
        random = call.draws and call.packet not in DROPOUTS
        args = [v for _, v in call.tensors()]
        if random or any(v in before for v in args):
            before.update(outputs)
        if all(v in empty for v in outputs) and outputs:
            continue
        if _sums_nothing(plan, mode, call):
            emptied_sum.add(call.index)
            args = [call.value_at("self")] if call.packet in (aten.addmm, aten.baddbmm) else []
        if random or any(v in after and v not in empty for v in args) or any(v in before & pinned for v in outputs):
            after.update(outputs)
    folded = frozenset(before - after - empty)
    return Fate(empty, folded, frozenset(emptied_sum), needed(program, gone=empty | folded))


def _pinned(plan: Plan, mode: Mode) -> set[int]:
    """Values whose memory is written through another view: they are left as they are."""
    program = plan.graph.of(mode).program
    written = {program.values[c.mutates].storage for c in program.calls if c.mutates is not None}
    made_by_write = {v for c in program.calls if c.mutates is not None for v in c.outputs}
    views: dict[int, list[int]] = {}
    for value in program.values:
        if value.storage in written:
            views.setdefault(value.storage, []).append(value.id)
    return {v for group in views.values() if sum(v not in made_by_write for v in group) > 1 for v in group}


def _sums_nothing(plan: Plan, mode: Mode, call: Call) -> bool:
    """Whether the call sums over an axis with nothing living on it; an error if it cannot do without."""
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


def check_connected(plan: Plan, mode: Mode, fate: Fate) -> None:
    """An output that no longer depends on any input is an error that names the edge to blame."""
    labelled = plan.graph.of(mode)
    for leaf in labelled.program.outputs[0]:
        if isinstance(leaf, Ref) and (leaf.id in fate.folded or leaf.id in fate.empty):
            calls = [c for c in labelled.program.calls if c.index in fate.emptied_sum]
            blame = _blame(plan, mode, calls[-1]) if calls else plan.emptied[0]
            raise KeptError(
                f"this cut would disconnect the output from the input: edge {blame!r} keeps no channel\n"
                "  Keep at least one unit of it.",
                blame,
            )


def _blame(plan: Plan, mode: Mode, call: Call) -> str:
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
    live = decide(plan, "eval").live
    total = sum(macs(call, lambda v: plan.shape("eval", v)) for call in program.calls if call.index in live)
    given = plan.graph.inputs.batch
    return total * given // program.batch if program.batch and given else total
