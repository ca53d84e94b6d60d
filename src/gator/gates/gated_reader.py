"""What a call computes that reads gated channels: what it reads is multiplied by the gates of the current draw."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gator.gates.gate import Gates
from gator.gates.gated_conv import Closed, closed_channels, conv_of_gated_input, conv_of_gated_weight, multiplied
from gator.gates.gated_norm import layer_norm_of_open
from gator.gates.sites import Site, Units
from gator.graph.program import BatchInt, Call, Program
from gator.surgery.live_call import LiveCall
from gator.surgery.masked_reader import FILL, MaskedReader, statistic_without

aten = torch.ops.aten
_CONVS = (aten.conv1d, aten.conv2d, aten.conv3d)
_EXTREMES = {kind: fill for kind, fill in FILL.items() if kind != "sum"}


class Draw:
    """The gates of one forward, rows x channels.

    What autograd follows is computed at once, or by every reader anew: one that is recomputed in backward (gradient
    checkpointing) has to run the same operators again.
    """

    def __init__(self, gates: Tensor, owner: Gates, examples: int) -> None:
        self.gates, self._owner, self._examples = gates, owner, examples
        widths = np.diff(owner.starts).tolist()
        # All edges are split off together: backward that is one join instead of one sum a reader.
        self._parts = torch.split_with_sizes(gates, widths, 1)
        self._first = torch.split_with_sizes(gates[:1], widths, 1) if len(gates) > 1 else self._parts
        self._closed: dict[Hashable, Closed | None] = {}

    def rows(self, which: Which) -> Tensor:
        """The gates of a site, rows x positions."""
        if which.edge is not None:
            part = (self._first if which.one_row else self._parts)[which.edge]
            return self._owner.read(part, self._owner.of_edge(which.edge), self._examples)
        gates = self.gates[:1] if which.one_row else self.gates
        channels, index = which.on(gates.device)
        part = self._owner.read(gates.index_select(1, channels), channels, self._examples)
        return torch.cat([part, part.new_ones(len(part), 1)], 1).index_select(1, index)

    def closed(self, which: Which) -> Closed | None:
        if which.key not in self._closed:
            with torch.no_grad():
                self._closed[which.key] = closed_channels(self.rows(which))
        return self._closed[which.key]


class Which:
    """Which gates of a draw a site multiplies by."""

    def __init__(self, site: Site, starts: Units) -> None:
        count = int(starts[-1])
        self.units = np.where(site.units < 0, count, site.units)
        self.positions = len(self.units)
        self.one_row = site.batch_axis is None
        self.edge = self._edge(starts)
        self.key = (self.units.tobytes(), self.one_row)
        # The channels it reads, and for every position their column; behind the channels there is a column of ones.
        found, columns = np.unique(self.units, return_inverse=True)
        self._channels, self._columns = found[found < count], columns.reshape(-1)
        self._on: dict[Any, tuple[Tensor, Tensor]] = {}

    def _edge(self, starts: Units) -> int | None:
        """The edge whose channels these are, all of them and in order."""
        first = self.units[0]
        edge = int(np.searchsorted(starts, first, side="right")) - 1
        if first == starts[-1] or len(self.units) != starts[edge + 1] - starts[edge]:
            return None
        return edge if (self.units == np.arange(starts[edge], starts[edge + 1])).all() else None

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The channels, and the column of every position."""
        if device not in self._on:
            channels, columns = self._channels, self._columns
            self._on[device] = torch.from_numpy(channels).to(device), torch.from_numpy(columns).to(device)
        return self._on[device]


class GatedReader:
    """Runs one call with gates. `masked` is its reader for edges that are closed altogether.

    `draw` returns the gates of the current forward for a number of examples, None if the call does not tell it.
    """

    def __init__(
        self,
        call: Call,
        sites: list[Site],
        program: Program,
        starts: Units,
        masked: MaskedReader | None,
        draw: Callable[[int | None], Draw],
    ) -> None:
        self.call = call
        self._sites = [(site, Which(site, starts)) for site in sites]
        self._masked = masked
        self._draw = draw
        self._batch = _batch_of(call, program)

    @property
    def identity(self) -> Hashable:
        """Readers with the same identity compute the same."""
        sites = tuple(
            (site.argument, site.axis, site.kind, which.key, site.batch_axis, site.copies) for site, which in self._sites
        )
        return (self.call.op, sites, None if self._masked is None else self._masked.identity)

    def __call__(self, live: LiveCall) -> Any:
        if self._masked is not None and self._masked.constant:
            return self._masked(live)
        draw = self._draw(None if self._batch is None else live.tensor(self._batch[0]).shape[self._batch[1]])
        if self._is_gated_conv():
            return self._gated_conv(live, draw)
        if self._is_layer_norm() and not torch.compiler.is_compiling():
            return self._gated_layer_norm(live, draw)
        closed = []
        for site, which in self._sites:
            x = live.tensor(site.argument)
            gate = spread(draw.rows(which), site, which.positions, x)
            if site.kind == "sum":
                live = live.given(site.argument, multiplied(x, gate))
            elif site.kind in _EXTREMES:
                live = live.given(site.argument, x.masked_fill(_shut(gate, site.axis - x.ndim), _EXTREMES[site.kind]))
            else:
                closed.append(1 - gate.to(x.dtype))
        if closed:
            return statistic_without(live, closed)
        return live.run() if self._masked is None else self._masked(live)

    def _is_gated_conv(self) -> bool:
        """A convolution in its usual form: examples on axis 0, channels on axis 1, or the weight gated instead."""
        site = self._sites[0][0]
        if len(self._sites) != 1 or self.call.packet not in _CONVS or site.kind != "sum" or site.axis != 1:
            return False
        return site.argument[0] == "weight" or site.batch_axis == 0

    def _is_layer_norm(self) -> bool:
        """A layer norm over the last axis alone."""
        return self.call.packet is aten.layer_norm and len(self._sites) == 1 and len(self.call.args["normalized_shape"]) == 1

    def _gated_layer_norm(self, live: LiveCall, draw: Draw) -> Tensor:
        (site, which), args = self._sites[0], live.named()
        gate = spread(draw.rows(which), site, which.positions, args["input"])
        return layer_norm_of_open(args["input"], gate, args.get("weight"), args.get("bias"), args.get("eps", 1e-5))

    def _gated_conv(self, live: LiveCall, draw: Draw) -> Tensor:
        (site, which), args = self._sites[0], live.named()
        get = args.get
        settings = (get("stride", [1]), get("padding", [0]), get("dilation", [1]), get("groups", 1))
        rows = draw.rows(which)
        if site.argument[0] == "weight":
            return conv_of_gated_weight(args["input"], args["weight"], get("bias"), rows, *settings)
        return conv_of_gated_input(args["input"], args["weight"], get("bias"), rows, draw.closed(which), *settings)


def _batch_of(call: Call, program: Program) -> tuple[Any, int] | None:
    """An argument and an axis of it whose size is the number of examples."""
    for argument, value in call.tensors():
        for axis, size in enumerate(program.values[value].shape):
            if isinstance(size, BatchInt) and size.slope == 1 and size.offset == 0:
                return argument, axis
    return None


def spread(rows: Tensor, site: Site, positions: int, x: Tensor) -> Tensor:
    """The gates of a site, shaped to multiply the argument."""
    if site.copies:
        times = x.shape[site.axis] // positions
        flat = rows.reshape(-1)
        flat = flat.repeat(times) if site.copies == "tile" else flat.repeat_interleave(times)
        return flat.reshape(-1, *[1] * (x.ndim - site.axis - 1))
    shape = [1] * x.ndim
    shape[site.axis] = positions
    if site.batch_axis is not None:
        shape[site.batch_axis] = -1
        if site.batch_axis > site.axis:
            rows = rows.transpose(0, 1)
    return rows.reshape(shape)


def _shut(gate: Tensor, axis: int) -> Tensor:
    """Where a gate is shut, unless all of them are: an extreme of nothing is not a number."""
    shut = gate == 0
    return shut & ~shut.all(axis, keepdim=True)
