"""The graph of a network in training with gates: its own layers, with what every reader reads multiplied by the gates."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from gator.gates.gated_conv import closed_channels, conv_of_gated_input, conv_of_gated_weight, multiplied
from gator.gates.sites import Site, Units
from gator.graph.program import BatchInt, Call, Mode, Ref
from gator.surgery.emit_masked import FILL, MaskedEmitter
from gator.surgery.layers import Leaf
from gator.surgery.plan import Plan

aten = torch.ops.aten
_CONVS = (aten.conv1d, aten.conv2d, aten.conv3d)
_RELUS = (aten.relu, aten.relu_)
_EXTREMES = {kind: fill for kind, fill in FILL.items() if kind != "sum"}


class GatedEmitter(MaskedEmitter):
    """Takes the drawn gates as first input: rows x (channels and one more column of ones).

    `plan` holds only edges that are closed altogether: behind those the network takes another form, a constant, which is
    masked as well as gated.
    """

    def __init__(
        self, plan: Plan, mode: Mode, model: nn.Module, canonical: Mapping[str, str], sites: Mapping[int, list[Site]], ones: int
    ) -> None:
        super().__init__(plan, mode, model, canonical)
        self._sites = sites
        self._ones = ones  # the column of ones
        self._gates = self.graph.placeholder("gates")
        values = self.program.values
        self._written = {values[call.mutates].storage for call in self.program.calls if call.mutates is not None}
        self._picked: dict[Any, fx.Node] = {}
        self._parts: dict[bool, fx.Node] = {}
        self._products: dict[Any, fx.Node] = {}
        self._closed: dict[fx.Node, fx.Node] = {}
        self._maker = {value: call.index for call in self.program.calls for value in call.outputs if value is not None}
        self._absorbed = self._relus_of_convolutions()

    def write(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        sites = self._sites.get(call.index, [])
        if call.index in self._absorbed:
            return args["self"]
        if not sites or (call.packet is aten.batch_norm and call.value_at("input") in self.liveness.folded):
            return super().write(call, leaf, args)
        sums = [site for site in sites if site.kind == "sum"]
        if self._is_gated_conv(call):
            return self._gated_conv(args, sites[0])
        for site in sums:
            leaf = leaf if leaf is not None and site.argument == (leaf.data, None) else None
            args = self._with(args, site, self._times(self._argument_at(args, site), site))
        for site in sites:
            if site.kind in _EXTREMES:
                shut = self.graph.call_function(_shut, (self._spread(site), site.axis - len(self.shape(site.value))))
                filled = (self._argument_at(args, site), shut, _EXTREMES[site.kind])
                args = self._with(args, site, self.graph.call_function(aten.masked_fill.Scalar, filled))
        statistics = [site for site in sites if site.kind != "sum" and site.kind not in _EXTREMES]
        if statistics:
            dead = [self.graph.call_function(_dead, (self._spread(site), args[site.argument[0]])) for site in statistics]
            return self.statistics_without_removed(call, args, dead)
        return super().write(call, leaf, args)

    def _is_gated_conv(self, call: Call) -> bool:
        """A convolution in its usual form: examples on axis 0, channels on axis 1, or the weight gated instead."""
        sites = self._sites.get(call.index, [])
        if len(sites) != 1 or call.packet not in _CONVS or sites[0].kind != "sum" or sites[0].axis != 1:
            return False
        return sites[0].argument[0] == "weight" or sites[0].batch_axis == 0

    def _gated_conv(self, args: dict[str, Any], site: Site) -> fx.Node:
        get = args.get
        settings = (get("stride", [1]), get("padding", [0]), get("dilation", [1]), get("groups", 1))
        rows = self._rows_of(site)
        if site.argument[0] == "weight":
            return self.graph.call_function(conv_of_gated_weight, (args["input"], args["weight"], get("bias"), rows, *settings))
        if rows not in self._closed:
            # Early in the graph, where all draws are looked at together: amid large convolutions every small call is slow.
            with self.graph.inserting_after(rows):
                self._closed[rows] = self.graph.call_function(closed_channels, (rows,))
        relu = self._maker.get(site.value) in self._absorbed
        gated = (args["input"], args["weight"], get("bias"), rows, self._closed[rows], relu)
        return self.graph.call_function(conv_of_gated_input, (*gated, *settings))

    def _relus_of_convolutions(self) -> frozenset[int]:
        """ReLUs whose result is read by one gated convolution and by nothing else: it computes them itself."""
        values = self.program.values
        seen = {value.storage for value in values if value.origin != "call"}  # by others than this graph
        seen |= {values[leaf.id].storage for leaf in self.program.outputs[0] if isinstance(leaf, Ref)}
        readers: dict[int, list[Call]] = {}
        for call in self.program.calls:
            for _, value in call.tensors():
                readers.setdefault(values[value].storage, []).append(call)
        found = set()
        for call in self.program.calls:
            result = call.outputs[0] if call.packet in _RELUS and not call.frozen else None
            if result is None or values[result].storage in seen:
                continue
            later = [reader for reader in readers.get(values[result].storage, ()) if reader.index > call.index]
            if len(later) == 1 and self._is_gated_conv(later[0]):
                site = self._sites[later[0].index][0]
                if site.argument[0] == "input" and site.value == result:
                    found.add(call.index)
        return frozenset(found)

    def _argument_at(self, args: dict[str, Any], site: Site) -> Any:
        name, position = site.argument
        return args[name] if position is None else args[name][position]

    def _with(self, args: dict[str, Any], site: Site, node: fx.Node) -> dict[str, Any]:
        name, position = site.argument
        if position is None:
            return {**args, name: node}
        items = list(args[name])
        items[position] = node
        return {**args, name: items}

    def _times(self, node: fx.Node, site: Site) -> fx.Node:
        """One product serves all readers of the same value, unless something is written into it in between."""
        key = (node, site.axis, site.units.tobytes(), site.batch_axis)
        if key not in self._products or self.program.values[site.value].storage in self._written:
            self._products[key] = self.graph.call_function(multiplied, (node, self._spread(site)))
        return self._products[key]

    def _rows_of(self, site: Site) -> fx.Node:
        """The gates of a site: rows x positions."""
        units = np.where(site.units < 0, self._ones, site.units)
        key = (units.tobytes(), site.batch_axis is None)
        if key not in self._picked:
            edge = self._edge_that_is(units)
            if edge is not None:
                node = self._of_edge(edge, one_row=site.batch_axis is None)
            else:
                index = self.index_tensor(units, f"_units_{self.mode}_{len(self._picked)}")
                with self.graph.inserting_after(index):
                    node = self.graph.call_function(aten.index_select.default, (self._gates, 1, index))
                if site.batch_axis is None:
                    with self.graph.inserting_after(node):
                        node = self.graph.call_function(aten.slice.Tensor, (node, 0, 0, 1))
            self._picked[key] = node
        return self._picked[key]

    def _edge_that_is(self, units: Units) -> int | None:
        """The edge whose channels these are, all of them and in order."""
        starts = self.plan.graph.starts
        edge = int(np.searchsorted(starts, units[0], side="right")) - 1
        if units[0] == self._ones or len(units) != starts[edge + 1] - starts[edge]:
            return None
        return edge if (units == np.arange(starts[edge], starts[edge + 1])).all() else None

    def _of_edge(self, edge: int, *, one_row: bool) -> fx.Node:
        """The gates of an edge. All are split off at once: backward that is one join instead of one sum a reader."""
        if one_row not in self._parts:
            widths = [*np.diff(self.plan.graph.starts).tolist(), 1]
            with self.graph.inserting_after(self._gates):
                node = self._gates
                if one_row:
                    node = self.graph.call_function(aten.slice.Tensor, (node, 0, 0, 1))
            with self.graph.inserting_after(node):
                self._parts[one_row] = self.graph.call_function(aten.split_with_sizes.default, (node, widths, 1))
        with self.graph.inserting_after(self._parts[one_row]):
            return self.graph.call_function(operator.getitem, (self._parts[one_row], edge))

    def _spread(self, site: Site) -> fx.Node:
        """The gates of a site, shaped to multiply the argument."""
        node = self._rows_of(site)
        rank = len(self.program.values[site.value].shape)
        if site.copies:
            times = self.size(BatchInt(1, 0, self.program.batch or 1))
            node = self.graph.call_function(aten.reshape.default, (node, [-1]))
            if site.copies == "tile":
                node = self.graph.call_function(aten.repeat.default, (node, [times]))
            else:
                node = self.graph.call_function(aten.repeat_interleave.self_int, (node, times))
            return self.graph.call_function(aten.reshape.default, (node, [-1, *[1] * (rank - site.axis - 1)]))
        shape = [1] * rank
        shape[site.axis] = len(site.units)
        if site.batch_axis is not None:
            shape[site.batch_axis] = -1
            if site.batch_axis > site.axis:
                node = self.graph.call_function(aten.transpose.int, (node, 0, 1))
        return self.graph.call_function(aten.reshape.default, (node, shape))


def _dead(gate: Tensor, x: Tensor) -> Tensor:
    return 1 - gate.to(x.dtype)


def _shut(gate: Tensor, axis: int) -> Tensor:
    """Where a gate is shut, unless all of them are: an extreme of nothing is not a number."""
    shut = gate == 0
    return shut & ~shut.all(axis, keepdim=True)
