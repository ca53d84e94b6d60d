"""Limits on pruning: the minimum width of every edge, the number that widths are multiples of, and edges that are not pruned.

Edges are named by themselves, by the layers that write them, by glob patterns, or by modules of the model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gator.cost.axis_sizes import full_widths
from gator.cost.prices import Prices
from gator.errors import GatorError
from gator.graph.hypergraph import Edge, Hypergraph
from gator.graph.select_layers import layers_named, under

MinWidth = int | Mapping[str, int]
RoundTo = int | Literal["auto"]
Widths = NDArray[np.int64]  # one per edge
# With round_to="auto": from this width on multiples of so many channels, which is what the kernels of most devices work on.
_MULTIPLES = ((64, 8), (32, 4))
_GROUPED = 4  # for depthwise and other grouped convolutions of any width: with others ONNX Runtime leaves its fast layout
_CONVOLUTIONS = (torch.ops.aten.conv1d, torch.ops.aten.conv2d, torch.ops.aten.conv3d)
log = logging.getLogger("gator")


@dataclass(frozen=True)
class Limits:
    """For every edge, in the order of the graph, its least width and the number of channels its width is a multiple of."""

    least: Widths
    multiples: Widths
    kept: tuple[int, ...] = ()  # edges that are not pruned
    auto: bool = False  # whether the prices may still say better what widths should be multiples of

    @staticmethod
    def of(
        model: nn.Module, graph: Hypergraph, min_width: MinWidth, round_to: RoundTo, keep: Iterable[str | nn.Module]
    ) -> Limits:
        """The limits as a user gives them. Raises GatorError for what does not fit."""
        if round_to != "auto" and (isinstance(round_to, bool) or not isinstance(round_to, int) or round_to < 1):
            raise GatorError(f'round_to={round_to!r}; expected a whole number of channels, 1 or more, or "auto"')
        least = np.zeros(len(graph.edges), dtype=np.int64)
        for name, number in min_width.items() if isinstance(min_width, Mapping) else [("", min_width)]:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                where = f" of {name!r}" if name else ""
                raise GatorError(f"min_width{where} is {number!r}; expected a whole number, 0 or more")
            chosen = edges_named(model, graph, [name], "min_width") if name else range(len(graph.edges))
            least[list(chosen)] = number
        if graph.keep_class:
            least = np.maximum(least, 1)  # without any channels of an edge, layers are gone that the class needs
        widths = np.array([edge.width for edge in graph.edges], dtype=np.int64)
        least = np.minimum(least, widths)
        kept = edges_named(model, graph, keep, "keep")
        least[list(kept)] = widths[list(kept)]
        multiples = _usual_multiples(graph) if round_to == "auto" else np.full(len(graph.edges), round_to, dtype=np.int64)
        return Limits(least, multiples, kept, auto=round_to == "auto")

    def resolved(self, prices: Prices, graph: Hypergraph) -> Limits:
        """The same; with `round_to="auto"` widths are multiples of the step of these prices, if they have one.

        Edges narrower than two steps have a smaller one, which divides it, so that they can become narrower at all.
        """
        step = prices.width_step if self.auto else 1
        if step == 1:
            return replace(self, auto=False)
        multiples = [_fitting(step, width) for width in full_widths(graph)]
        return replace(self, multiples=np.array(multiples, dtype=np.int64), auto=False)

    def with_one_of(self, edge: int) -> Limits:
        """The same, but this edge keeps at least one channel."""
        assert self.least[edge] == 0, f"edge {edge} keeps a channel already"
        return self.wider_than(edge, 0)

    def wider_than(self, edge: int, width: int) -> Limits:
        """The same, but this edge stays wider than that."""
        least = self.least.copy()
        least[edge] = max(width + 1, least[edge])
        return replace(self, least=least)

    def widths_down(self, edge: int, width: int) -> list[int]:
        """The widths an edge can go down to from here, in falling order."""
        step = int(self.multiples[edge])
        widths = range(((width - 1) // step) * step, -1, -step) if width else ()
        return [lower for lower in widths if lower >= self.least[edge]]


def _fitting(step: int, width: int) -> int:
    """The largest divisor of the step that leaves an edge of this width something to lose."""
    return max(part for part in range(1, step + 1) if step % part == 0 and part <= max(width // 2, 1))


def _usual_multiples(graph: Hypergraph) -> Widths:
    """What widths are multiples of when nothing is known about the device."""
    grouped = set()
    program = graph.eval.program
    for call in program.calls:
        if call.packet in _CONVOLUTIONS and call.args.get("groups", 1) != 1:
            grouped.add(program.values[call.value_at("weight")].name)

    def multiple(edge: Edge) -> int:
        usual = next((multiple for width, multiple in _MULTIPLES if edge.width >= width), 1)
        channels = [len(member.units) // edge.width for member in edge.members if member.parameter in grouped]  # of a unit
        needed = _GROUPED // math.gcd(_GROUPED, max(channels)) if channels else 1
        return _fitting(max(usual, needed), edge.width)

    return np.array([multiple(edge) for edge in graph.edges], dtype=np.int64)


def edges_named(model: nn.Module, graph: Hypergraph, given: Iterable[str | nn.Module], argument: str) -> tuple[int, ...]:
    """The edges that `given` names, by index: names of edges or of layers that write them, glob patterns, and modules.

    Raises GatorError, which names `argument`, for what matches nothing, and for a layer that writes no edge: then the message
    says which edges its channels belong to. Where a layer is one of several that write an edge, the log says which.
    """
    if isinstance(given, str):
        raise GatorError(f"{argument}={given!r} is a string; expected a list of names, [{given!r}]")
    found: dict[int, None] = {}
    for item in given:
        by_name = [i for i, edge in enumerate(graph.edges) if isinstance(item, str) and _is_named(edge, item)]
        found.update(dict.fromkeys(by_name or _written_by(model, graph, item, argument)))
    return tuple(sorted(found))


def _is_named(edge: Edge, pattern: str) -> bool:
    return edge.name == pattern or fnmatchcase(edge.name, pattern)


def _written_by(model: nn.Module, graph: Hypergraph, item: str | nn.Module, argument: str) -> list[int]:
    """The edges that the named layers write."""
    layers = layers_named(model, [item], argument, error=GatorError)

    def touching(names: Iterable[str]) -> bool:
        return any(under(name, layer) for name in names for layer in layers)

    found = [i for i, edge in enumerate(graph.edges) if touching(edge.producers)]
    if not found:
        owners = [edge.name for edge in graph.edges if touching(m.parameter for m in edge.members)]
        hint = f"its channels belong to edge {' and '.join(map(repr, owners))}: name that" if owners else "they are fixed"
        raise GatorError(f"{argument}= names {layers[0]!r}, which writes no channels that could be removed; {hint}")
    for index in found:
        others = [layer for layer in graph.edges[index].producers if not touching([layer])]
        if others:
            log.warning(
                "%s= names %s, which is part of edge %r together with %s: the limit holds for the whole edge",
                argument, layers[0], graph.edges[index].name, ", ".join(others[:3]) + ("" if len(others) < 4 else ", ..."),
            )  # fmt: skip
    return found
