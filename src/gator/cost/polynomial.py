"""Prices that are counted exactly, and what one more channel of an edge adds.

Counts of multiply-adds and of memory are sums of products of axis sizes, and the size of an axis is linear in the widths
of the edges that lie on it. The cost of a channel (lambda of eq. 5 and 6) is the derivative of that sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gator.cost.axis_sizes import AxisSize, AxisSizes
from gator.cost.prices import Floats, Prices, Widths
from gator.graph.hypergraph import Hypergraph
from gator.graph.labels import Axis
from gator.graph.program import MODES, Mode
from gator.surgery.liveness import Liveness, liveness_of
from gator.surgery.plan import Plan


@dataclass(frozen=True)
class Sum:
    """A term: `scale` times the sizes of these axes, present while one of `calls` (mode, call) is still needed."""

    scale: float
    axes: tuple[Axis, ...]
    calls: tuple[tuple[Mode, int], ...]


class Polynomial(Prices):
    """A sum of products of axis sizes over the widths of a graph's edges."""

    def __init__(self, graph: Hypergraph, terms: Iterable[Sum], unit: str) -> None:
        self.graph, self.unit = graph, unit
        sizes, rows = AxisSizes(graph), {AxisSize(1): 0}  # row 0 fills up products that are shorter than the longest
        merged: dict[tuple[int, ...], dict[tuple[tuple[Mode, int], ...], float]] = {}
        for term in terms:
            scale, factors = term.scale, []
            for axis in term.axes:
                size = sizes.of_axis(axis)
                if size is not None:
                    factors.append(rows.setdefault(size, len(rows)))
                elif axis is not None:
                    scale *= len(axis)
            found = merged.setdefault(tuple(sorted(factors)), {})
            found[term.calls] = found.get(term.calls, 0.0) + scale
        flat = [(factors, calls, scale) for factors, parts in merged.items() for calls, scale in parts.items()]
        most = max((len(factors) for factors, _, _ in flat), default=0)
        index = [[*factors, *[0] * (most - len(factors))] for factors, _, _ in flat]
        self._index = np.array(index, dtype=np.int64).reshape(len(flat), most)
        self._scale = np.array([scale for _, _, scale in flat], dtype=np.float64)
        self._calls = [calls for _, calls, _ in flat]
        self._matrix = np.zeros((len(rows), len(graph.edges)))  # the size of every axis is matrix @ widths + base
        for size, row in rows.items():
            for edge, positions, width in size.parts:
                self._matrix[row, edge] = positions / width
        self._base = np.array([size.fixed for size in rows], dtype=np.float64)
        self._present: dict[tuple[int, ...], Floats] = {}

    def _scales(self, widths: Floats) -> Floats:
        """The scale of every term, 0 for those of calls that a closed edge has made unnecessary."""
        empty = tuple(np.flatnonzero(widths == 0).tolist())
        if empty not in self._present:
            self._present[empty] = self._scale if not empty else self._scale * self._needed(empty)
        return self._present[empty]

    def _needed(self, empty: tuple[int, ...]) -> Floats:
        by_mode = liveness_by_mode(self.graph, [self.graph.edges[index].name for index in empty])
        live = {(mode, call) for mode, liveness in by_mode.items() for call in liveness.live}
        return np.array([not calls or any(call in live for call in calls) for calls in self._calls], dtype=np.float64)

    def total(self, widths: Widths) -> float:
        w = np.asarray(widths, dtype=np.float64)
        sizes = self._matrix @ w + self._base
        return float((self._scales(w) * sizes[self._index].prod(axis=1)).sum())

    def per_channel(self, widths: Widths) -> Floats:
        w = np.asarray(widths, dtype=np.float64)
        factors = (self._matrix @ w + self._base)[self._index]
        scales = self._scales(w)
        result = np.zeros(len(w))
        for column in range(factors.shape[1]):
            others = scales * np.delete(factors, column, axis=1).prod(axis=1)
            result += others @ self._matrix[self._index[:, column]]
        return result

    def savings(self, widths: Widths, lower: Sequence[NDArray[np.int64]]) -> list[Floats]:
        """By the slopes, which are right for all edges but those that lie on two axes of one operation."""
        slopes, now = self.per_channel(widths), np.asarray(widths)
        return [slopes[edge] * (now[edge] - narrower).astype(np.float64) for edge, narrower in enumerate(lower)]


def liveness_by_mode(graph: Hypergraph, emptied: Iterable[str]) -> dict[Mode, Liveness]:
    """What becomes of every call, by mode, when these edges keep nothing."""
    plan = Plan(graph, {name: [] for name in emptied})
    return {mode: liveness_of(plan, mode) for mode in MODES}
