"""The table of rules, one per operator, and `Scope`: a call and the labels of its arguments, as a rule sees them.

A rule takes a Scope and returns the axes of every output. It ties labels that must be kept or removed together, fixes what
cannot be pruned, and declares which axes the call reads *along* (sums, averages or normalises over), because a removed channel
must not contribute there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from gator.graph.labels import Axes, Axis, Labels
from gator.graph.program import BatchInt, Call, Ref
from gator.private_torch import OpOverload, full_name_of

if TYPE_CHECKING:
    from gator.graph.analysis import Analysis

# How removed channels are kept out of a result: filled with 0, -inf or inf, or left out of a statistic.
ReadKind = Literal["sum", "max", "min", "prod", "mean", "var", "batch_norm", "layer_norm", "rms_norm", "group_norm"]
Rule = Callable[["Scope"], Sequence[Axes]]
_RULES: dict[Any, Rule] = {}


def rule(*packets: Any) -> Callable[[Rule], Rule]:
    """Register a rule for operators (all overloads). Raises ValueError for an operator that has a rule already.

    The operator of a library that is not imported here is given by its full name, "library::operator".
    """

    def register(function: Rule) -> Rule:
        for packet in packets:
            if packet in _RULES:
                raise ValueError(f"{packet} has a rule already")
            _RULES[packet] = function
        return function

    return register


def find(op: OpOverload) -> Rule | None:
    """The rule of an operator: its own, or the pointwise rule if torch tags the operator as pointwise."""
    found = _RULES.get(op.overloadpacket) or _RULES.get(full_name_of(op))
    if found is None and torch.Tag.pointwise in op.tags:
        return _RULES[torch.Tag.pointwise]
    return found


def has_rule(op: OpOverload) -> bool:
    return find(op) is not None


def orders_differ(left: Labels, right: Labels, batch: int | None) -> bool:
    """Whether two axes of size batch * n repeat their n labels in different orders: for every example, and for every label."""
    if not batch or batch < 2 or len(left) != len(right) or len(left) <= batch or len(left) % batch:
        return False
    orders = {_order(left, batch), _order(right, batch)}
    return orders == {"outer", "inner"}


def _order(labels: Labels, batch: int) -> Literal["outer", "inner", ""]:
    period = len(labels) // batch
    outer = labels[0] == labels[period] and np.array_equal(labels, np.tile(labels[:period], batch))
    inner = labels[0] == labels[1] and np.array_equal(labels, np.repeat(labels[::batch], batch))
    if outer == inner:
        return ""
    return "outer" if outer else "inner"


class Scope:
    """One call, with the labels of its arguments."""

    def __init__(self, analysis: Analysis, call: Call) -> None:
        self.analysis = analysis
        self.call = call

    def has(self, name: str) -> bool:
        return isinstance(self.call.args.get(name), Ref)

    def get(self, name: str, default: Any = None) -> Any:
        return self.call.args.get(name, default)

    def id(self, name: str, position: int | None = None) -> int:
        return self.call.value_at((name, position))

    def axes(self, name: str, position: int | None = None) -> list[Axis]:
        return list(self.analysis.axes[self.id(name, position)])

    def shape(self, name: str, position: int | None = None) -> tuple[int, ...]:
        return self.analysis.program.values[self.id(name, position)].shape

    def out_shape(self, index: int = 0) -> tuple[int, ...]:
        identifier = self.call.outputs[index]
        assert identifier is not None
        return self.analysis.program.values[identifier].shape

    def dim(self, value: int, rank: int) -> int:
        return value % rank if rank else 0

    def fresh(self, size: int) -> Labels:
        return self.analysis.space.fresh(int(size))

    def fix(self, axis: Axis, why: str) -> None:
        if axis is not None:
            self.analysis.space.fix(axis, self.analysis.position(self.call), why)

    def tie(self, left: Axis, right: Axis, why: str, size: int = 0) -> Axis:
        """Tie two axes of the same size position by position. If one of them is fixed, the other becomes fixed too.

        `size` is given where it may depend on the batch: then both axes must repeat their labels in the same order.
        """
        if left is None or right is None:
            self.fix(left, why)
            self.fix(right, why)
            return None
        if isinstance(size, BatchInt) and orders_differ(left, right, self.analysis.program.batch):
            # Which positions would be tied depends on the batch size.
            self.fix(left, "the batch is the outer factor of one axis and the inner factor of the other")
            self.fix(right, "the batch is the outer factor of one axis and the inner factor of the other")
            return None
        self.analysis.space.tie(left, right, self.analysis.position(self.call), why)
        return left

    def tie_rows(self, labels: Labels, rows: Labels, count: int, why: str) -> Labels:
        """Tie all labels with the same row number; returns one label per row."""
        first = np.zeros(count, dtype=np.int64)
        first[rows[::-1]] = np.arange(len(rows) - 1, -1, -1)
        chosen = labels[first]
        self.analysis.space.tie(labels, chosen[rows], self.analysis.position(self.call), why)
        return chosen

    def units(self, axis: Axis) -> int:
        if axis is None:
            return 0
        roots = np.unique(self.analysis.space.roots(axis))
        return int((roots != 0).sum())

    def read(self, name: str, axis: int, kind: ReadKind, position: int | None = None) -> None:
        """Declare that the call mixes positions along this axis of this argument."""
        labels = self.axes(name, position)[axis]
        if labels is not None:
            self.analysis.add_read(self.call, (name, position), axis, kind)

    def consumes(self, name: str, axis: int, position: int | None = None) -> None:
        """Declare that this layer reads an edge through this axis of its weight (the paper's C_in)."""
        self.analysis.add_port("consumer", self.call, self.id(name, position), axis)

    def produces(self, name: str, axis: int, position: int | None = None) -> None:
        """Declare that this layer writes an edge through this axis of its weight (the paper's C_out)."""
        self.analysis.add_port("producer", self.call, self.id(name, position), axis)

    def choose(self, options: dict[Any, int]) -> Any:
        """Choose the option that leaves the most prunable units, unless an earlier pass rejected it."""
        return self.analysis.choose(self.call, options)

    def set_choice_labels(self, labels: Axis) -> None:
        """Declare which labels the choice is about: if they end up fixed, the next pass rejects it."""
        self.analysis.set_choice_labels(self.call, labels)

    def data_of(self, name: str, position: int | None = None) -> torch.Tensor | None:
        """The data of an argument that is an integer constant or buffer; None for any other."""
        return self.analysis.data_of(self.id(name, position))

    def moved(self, source: int, axis: int, coordinates: Labels) -> None:
        """Declare that position i along output axis `axis` holds position coordinates[i] of input axis `source`."""
        self.analysis.add_move(self.call, source, axis, coordinates)
