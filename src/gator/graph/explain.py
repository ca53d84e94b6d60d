"""Explain why channels are tied or fixed, from the ties that the rules recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gator.errors import GatorError
from gator.graph.labels import Axes, Labels, Tie
from gator.graph.program import Call
from gator.suggest import did_you_mean

if TYPE_CHECKING:
    from gator.graph.hypergraph import Edge


class Explainer:
    """Holds the ties of an analysis and searches them for reasons."""

    def __init__(self, ties: Sequence[Tie], calls: Sequence[Call], roots: Labels, attributes: dict[str, Axes]) -> None:
        self._ties = ties
        self._calls = calls
        self._roots = roots
        self._attributes = attributes

    def edge(self, edge: Edge) -> str:
        lines = [
            f"{edge.name}: {edge.width} units",
            f"  written by {', '.join(edge.producers)}",
            f"  read by {', '.join(edge.consumers) or 'no layer'}",
            "  tied by",
        ]
        member = edge.members[0]
        labels = self._attributes[member.parameter][member.axis]
        assert labels is not None
        root = self._roots[labels[member.units.index(0)]]
        lines += [f"    {reason}" for reason in self._reasons(int(root))] or ["    nothing: it has a single member"]
        return "\n".join(lines)

    def parameter(self, name: str, edges: Sequence[Edge]) -> str:
        """The edge of each axis of a parameter (or of all parameters of a layer); for a fixed axis, the calls that fix it."""
        names = [n for n in self._attributes if n == name or n.startswith(name + ".")]
        if not names:
            layers = {n.rpartition(".")[0] for n in self._attributes} | set(self._attributes)
            hint = did_you_mean(name, layers, otherwise="print(graph) lists the edges")
            raise GatorError(f"no edge, layer or parameter {name!r}; {hint}")
        where = {(m.parameter, m.axis): edge.name for edge in edges for m in edge.members}
        lines = []
        for parameter in names:
            for axis, labels in enumerate(self._attributes[parameter]):
                if labels is None:
                    continue
                head = f"{parameter} axis {axis} ({len(labels)})"
                fixed = labels[self._roots[labels] == 0]
                if (parameter, axis) in where:
                    lines.append(f"{head}: edge {where[parameter, axis]}")
                if len(fixed):
                    lines.append(f"{head}: {len(fixed)} fixed, for example by")
                    lines += [f"    {reason}" for reason in self._path(int(fixed[0]))]
                elif (parameter, axis) not in where:
                    lines.append(f"{head}: no layer writes it, so it is not pruned")
        return "\n".join(lines)

    def _text(self, tie: Tie) -> str:
        return f"{tie.why}: {self._calls[tie.call].where()}" if tie.call >= 0 else tie.why

    def _reasons(self, root: int) -> list[str]:
        """The ties of one class, without repetitions."""
        found = dict.fromkeys(self._text(tie) for tie in self._ties if (self._roots[tie.left] == root).any())
        return list(found)

    def _path(self, label: int) -> list[str]:
        """The shortest chain of ties from a label to 0."""
        reached: dict[int, tuple[int, Tie] | None] = {label: None}
        queue = deque([label])
        fixed = [tie for tie in self._ties if (self._roots[tie.left] == 0).any() or (self._roots[tie.right] == 0).any()]
        while queue and 0 not in reached:
            at = queue.popleft()
            for tie in fixed:
                for here, there in ((tie.left, tie.right), (tie.right, tie.left)):
                    for other in np.unique(there[here == at]).tolist():
                        if other not in reached:
                            reached[other] = (at, tie)
                            queue.append(other)
        chain: list[str] = []
        step = reached.get(0)
        while step is not None:
            chain.append(self._text(step[1]))
            step = reached[step[0]]
        return list(dict.fromkeys(reversed(chain))) or ["no call uses it"]
