"""Where gates are multiplied in: once for every reader of an edge, so that a gate of 0 removes the channel for all of them.

A reader is a call that mixes channels: a contraction, or a statistic over them. One of the two sides of a contraction is
gated: the weight if a draw holds for the whole batch (no activation is touched), the activation if every example has its own
draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gator.graph.analysis import ProgramLabels, Read, static_values
from gator.graph.hypergraph import Hypergraph
from gator.graph.labels import Axis
from gator.graph.program import Argument, BatchInt, Call, Mode, Program

aten = torch.ops.aten
_TWO_SIDED = (
    aten.matmul, aten.mm, aten.bmm, aten.mv, aten.dot, aten.addmm, aten.baddbmm, aten.scaled_dot_product_attention,
)  # fmt: skip
Units = NDArray[np.int64]  # which channel lies at each position of an axis, -1 for one without a gate
_CONVS = (aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution)
_TRANSPOSED = (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)


@dataclass(frozen=True)
class Site:
    """One axis of one argument of one call, to be multiplied by the gates of its channels."""

    argument: Argument
    value: int
    axis: int
    kind: str
    units: Units
    batch_axis: int | None  # where the examples lie; None: one draw for all
    copies: str = ""  # "tile" or "each" when the batch is folded into this axis, with `units` those of one example


def sites_of(graph: Hypergraph, mode: Mode, per: str, gated: frozenset[int]) -> dict[int, list[Site]]:
    """The sites of one mode's program, by call. `gated` are the edges that have gates."""
    labelled = graph.of(mode)
    unit_at = np.full(len(graph.roots), -1)
    for root, (edge, unit) in graph.edge_of.items():
        if edge in gated:
            unit_at[root] = graph.starts[edge] + unit
    finder = _Finder(labelled, unit_at[graph.roots], per)
    found = {call.index: list(finder.sites(call)) for call in labelled.program.calls if call.index in labelled.reads}
    return {call: sites for call, sites in found.items() if sites}


def drawn_together(sites: dict[int, list[Site]], graph: Hypergraph) -> frozenset[int]:
    """Edges with a reader that has one draw for the whole batch: then all their readers do."""
    units = [site.units for found in sites.values() for site in found if site.batch_axis is None]
    if not units:
        return frozenset()
    every = np.unique(np.concatenate(units))
    return frozenset((np.searchsorted(graph.starts, every[every >= 0], side="right") - 1).tolist())


class _Finder:
    def __init__(self, labelled: ProgramLabels, unit_at: Units, per: str) -> None:
        self.labelled = labelled
        self.program: Program = labelled.program
        self.unit_at = unit_at
        self.per = per
        self.static = static_values(labelled.program)

    def sites(self, call: Call) -> Iterator[Site]:
        if self.labelled.choices.get(call.index) == "groups" and call.packet in (*_CONVS, *_TRANSPOSED):
            return  # whole groups (depthwise): a closed channel feeds only itself
        contracted: dict[Any, list[Site]] = {}
        for read in self.labelled.reads[call.index]:
            site = self._site(call, read.argument, read.axis, read.kind)
            if site is None:
                continue
            if read.kind != "sum":
                yield site
                continue
            sides = contracted.setdefault(self._contraction(call, read, site), [])
            sides.append(site)
            sides.extend(self._weight_side(call, read))
        for sides in contracted.values():
            yield self._chosen(sides)

    def _contraction(self, call: Call, read: Read, site: Site) -> Any:
        """Reads with the same answer are the sides of one contraction, of which one is gated; other reads stand alone."""
        if call.packet is aten.einsum:
            term = call.args["equation"].replace(" ", "").partition("->")[0].split(",")[read.argument[1] or 0]
            before, dots, behind = term.partition("...")
            middle = len(self.program.values[site.value].shape) - len(before) - len(behind)
            return (before + dots[:1] * middle + behind)[read.axis]
        return "product" if call.packet in _TWO_SIDED else (read.argument, read.axis)

    def _chosen(self, sides: list[Site]) -> Site:
        if self.per == "example":
            own = [site for site in sides if site.batch_axis is not None]
            if own:
                return own[0]
        weights = [site for site in sides if site.value in self.static]
        return weights[0] if weights else sides[0]

    def _weight_side(self, call: Call, read: Read) -> Iterator[Site]:
        """The input axis of the weight that contracts what is read here."""
        # A transposed convolution may be called with another output size, which its weight alone does not tell.
        if read.argument != ("input", None) or call.packet not in (aten.linear, *_CONVS):
            return
        rank = len(self.program.values[call.value_at("weight")].shape)
        axis = rank - 1 if call.packet is aten.linear else 0 if call.args.get("transposed") else 1
        site = self._site(call, ("weight", None), axis, "sum")
        if site is not None:
            yield site

    def _site(self, call: Call, argument: Argument, axis: int, kind: str) -> Site | None:
        value = call.value_at(argument)
        labels: Axis = self.labelled.axes[value][axis]
        if labels is None:
            return None
        units = self.unit_at[labels]
        if (units < 0).all():
            return None
        shape = self.program.values[value].shape
        size = shape[axis]
        if isinstance(size, BatchInt):
            batch = self.program.batch or 1
            one = units[: size.slope]
            if (units == np.tile(one, batch)).all():
                return Site(argument, value, axis, kind, one, None, "tile")
            return Site(argument, value, axis, kind, units[::batch], None, "each")
        return Site(argument, value, axis, kind, units, self._batch_axis(value, axis))

    def _batch_axis(self, value: int, axis: int) -> int | None:
        if self.per != "example" or value in self.static:
            return None
        shape = self.program.values[value].shape
        follow = [i for i, size in enumerate(shape) if isinstance(size, BatchInt)]
        if len(follow) != 1 or follow[0] == axis:
            return None
        size = shape[follow[0]]
        assert isinstance(size, BatchInt)
        return follow[0] if size.slope == 1 and size.offset == 0 else None
