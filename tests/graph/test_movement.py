"""Rules for data movement compared with the operator itself run on indices: both ways give the same classes."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gator.graph.analysis import Analysis
from gator.graph.inputs import describe
from gator.graph.record_forward import record
from gator.graph.rules import Scope, find
from gator.graph.rules.movement import by_index

SHAPE = (4, 6, 2)
MOVES = {
    "view_split": lambda x: x.view(4, 3, 2, 2),
    "view_merge": lambda x: x.reshape(24, 2),
    "view_mixed": lambda x: x.reshape(2, 12, 2),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "slice": lambda x: x[1:, ::2],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "select": lambda x: x[2],
    "roll": lambda x: torch.roll(x, (1, 2), (0, 1)),
    "flip": lambda x: x.flip(0, 1),
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 1, 1])),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
}


class Moved(torch.nn.Module):
    def __init__(self, move) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SHAPE))
        self.move = move

    def forward(self, x):
        return x.sum() + self.move(self.weight).sum()


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(MOVES)), st.sets(st.integers(0, 2), min_size=1), st.integers(0, 5))
def test_both_ways_give_the_same_classes(name: str, labelled: set[int], ties: int) -> None:
    program = record(Moved(MOVES[name]), describe(torch.zeros(2)), lambda op: find(op) is not None, training=False)
    calls = [
        c for c in program.calls if c.packet is not torch.ops.aten.sum and any(v == _weight(program) for _, v in c.tensors())
    ]
    tables = []
    for way in ("rule", "index"):
        analysis = Analysis([program], {}, (), "whole", {})
        space = analysis.space
        start = [space.fresh(n) if axis in labelled else None for axis, n in enumerate(SHAPE)]
        for axis in labelled:
            if ties and start[axis] is not None:
                space.tie(start[axis][:1], start[axis][ties % SHAPE[axis] :][:1], -1, "drawn")
        analysis.axes[_weight(program)] = tuple(start)
        out = None
        for call in calls:
            scope = Scope(analysis, call)
            out = by_index(scope) if way == "index" else find(call.op)(scope)
            analysis.axes[call.outputs[0]] = tuple(out[0])
            calls_after = [c for c in program.calls if any(v == call.outputs[0] for _, v in c.tensors())]
            for after in calls_after:
                if after.packet is not torch.ops.aten.sum:
                    scope = Scope(analysis, after)
                    out = by_index(scope) if way == "index" else find(after.op)(scope)
        labels = [x for x in start if x is not None]
        labels += [x for x in out[0] if x is not None]
        tables.append(_partition(space.roots(np.concatenate(labels))))
    assert tables[0] == tables[1]


def _weight(program) -> int:
    return next(v.id for v in program.values if v.origin == "attribute")


def _partition(roots: np.ndarray) -> list[int]:
    """Class numbers by first appearance, fixed ones as -1: the same for two labellings of the same classes."""
    seen: dict[int, int] = {}
    return [-1 if r == 0 else seen.setdefault(int(r), len(seen)) for r in roots]
