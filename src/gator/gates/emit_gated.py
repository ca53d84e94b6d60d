"""The graph of a network in training with gates: its own layers, with what every reader reads multiplied by the gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from gator.gates.read import gated_conv, multiplied
from gator.gates.sites import Site
from gator.graph.program import BatchInt, Call
from gator.surgery.emit_masked import MaskedEmitter
from gator.surgery.layers import Leaf
from gator.surgery.plan import Plan

aten = torch.ops.aten
_CONVS = (aten.conv1d, aten.conv2d, aten.conv3d)
_EXTREMES = {"max": float("-inf"), "min": float("inf")}


class GatedEmitter(MaskedEmitter):
    """Takes the drawn gates as first input: rows x (channels and one more column of ones).

    `plan` holds only edges that are closed altogether: behind those the network takes another form (section 5 of the
    design), so they are masked, not gated.
    """

    def __init__(
        self, plan: Plan, index: int, model: nn.Module, canonical: Mapping[str, str], sites: Mapping[int, list[Site]], ones: int
    ) -> None:
        super().__init__(plan, index, model, canonical)
        self._sites = sites
        self._ones = ones  # the column of ones
        self._gates = self.graph.placeholder("gates")
        values = self.program.values
        self._written = {values[call.mutates].storage for call in self.program.calls if call.mutates is not None}
        self._picked: dict[Any, fx.Node] = {}
        self._products: dict[Any, fx.Node] = {}

    def write(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        sites = self._sites.get(call.index, [])
        if not sites or any(value in self.fate.folded for _, value in call.tensors()):
            return super().write(call, leaf, args)
        sums = [site for site in sites if site.kind == "sum"]
        if len(sites) == 1 and sums and call.packet in _CONVS and self._whole_rows(sites[0]):
            get = args.get
            settings = (get("stride", [1]), get("padding", [0]), get("dilation", [1]), get("groups", 1))
            return self.graph.call_function(
                gated_conv, (args["input"], args["weight"], get("bias"), self._rows_of(sites[0]), *settings)
            )
        for site in sums:
            leaf = leaf if leaf is not None and site.argument == (leaf.data, None) else None
            args = self._with(args, site, self._times(self._argument_at(args, site), site))
        for site in sites:
            if site.kind in _EXTREMES:
                shut = self.graph.call_function(_shut, (self._spread(site),))
                filled = (self._argument_at(args, site), shut, _EXTREMES[site.kind])
                args = self._with(args, site, self.graph.call_function(aten.masked_fill.Scalar, filled))
        statistics = [site for site in sites if site.kind != "sum" and site.kind not in _EXTREMES]
        if statistics:
            dead = [self.graph.call_function(_dead, (self._spread(site), args[site.argument[0]])) for site in statistics]
            return self.over_the_living(call, args, dead)
        return super().write(call, leaf, args)

    def _whole_rows(self, site: Site) -> bool:
        """A convolution in its usual form: examples on axis 0, channels on axis 1, or the weight gated instead."""
        if site.argument[0] == "weight":
            return site.axis == 1
        return site.axis == 1 and site.batch_axis == 0

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
            node = self._gates
            if site.batch_axis is None:
                node = self.graph.call_function(aten.slice.Tensor, (node, 0, 0, 1))
            start, count = int(units[0]), len(units)
            if (units == np.arange(start, start + count)).all():
                node = self.graph.call_function(aten.slice.Tensor, (node, 1, start, start + count))
            else:
                index = self.index_tensor(units, f"_units_{self.index}_{len(self._picked)}")
                node = self.graph.call_function(aten.index_select.default, (node, 1, index))
            self._picked[key] = node
        return self._picked[key]

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


def _shut(gate: Tensor) -> Tensor:
    return gate == 0
