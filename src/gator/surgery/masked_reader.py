"""What a call computes that reads an edge of which channels are removed: the same without them.

`MaskedReader` runs a call that is about to run, wherever it runs: in the user's own forward or in a written graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gator.graph.analysis import Read
from gator.graph.program import Argument, BatchInt, Call, Mode
from gator.surgery import masked_statistics
from gator.surgery.live_call import LiveCall, OperatorCall
from gator.surgery.liveness import DROPOUTS, Liveness
from gator.surgery.plan import Mask, Plan

aten = torch.ops.aten
FILL = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
Copies = Literal["", "tile", "each"]  # how the batch is folded into an axis: around its positions, or inside
_STATISTICS: dict[Any, Callable[..., Any]] = {
    aten.mean: masked_statistics.mean,
    aten.var: masked_statistics.var,
    aten.std: masked_statistics.std,
    aten.var_mean: masked_statistics.var_mean,
    aten.std_mean: masked_statistics.std_mean,
}


@dataclass(frozen=True)
class Removed:
    """The removed positions of one axis of one argument that a call reads along."""

    argument: Argument
    axis: int
    kind: str
    positions: Mask
    copies: Copies

    def spread(self, x: Tensor) -> Tensor:
        """True where `x` is removed, in a shape that broadcasts against it."""
        mask = torch.from_numpy(self.positions).to(x.device)
        if self.copies:
            times = x.shape[self.axis] // len(self.positions)
            mask = mask.repeat(times) if self.copies == "tile" else mask.repeat_interleave(times)
        return mask.reshape(-1, *[1] * (x.ndim - self.axis - 1))


def removed_axis(plan: Plan, mode: Mode, call: Call, read: Read) -> Removed | None:
    """What is removed of an axis that is read; None if nothing is."""
    labelled = plan.graph.of(mode)
    value = call.value_at(read.argument)
    alive = plan.alive(labelled.axes[value][read.axis])
    if alive is None:
        return None
    size, batch = labelled.program.values[value].shape[read.axis], labelled.program.batch or 1
    positions, copies = ~alive, ""
    if isinstance(size, BatchInt):
        one = positions[: size.slope]
        tiled = bool((positions == np.tile(one, batch)).all())
        positions, copies = (one, "tile") if tiled else (positions[::batch], "each")  # there is no third case
    return Removed(read.argument, read.axis, read.kind, positions, copies)  # type: ignore[arg-type]


class MaskedReader:
    """Runs one call without the removed channels. `constant`: what it is given does not depend on the input any more."""

    def __init__(self, call: Call, removed: list[Removed], *, constant: bool) -> None:
        self.call = call
        self.removed = removed
        self.constant = constant
        self._masks: dict[Any, Tensor] = {}

    @property
    def identity(self) -> Hashable:
        """Readers with the same identity compute the same."""
        axes = tuple((r.argument, r.axis, r.kind, r.positions.tobytes(), r.copies) for r in self.removed)
        return (self.call.op, axes, self.constant)

    def __call__(self, live: LiveCall) -> Any:
        if self.constant:
            return self._of_constant(live)
        masks = []
        for removed in self.removed:
            x = live.tensor(removed.argument)
            if removed.kind in FILL:
                live = live.given(removed.argument, x.masked_fill(self._mask(removed, x), FILL[removed.kind]))
            else:
                masks.append(self._mask(removed, x))
        return statistic_without(live, masks) if masks else live.run()

    def _of_constant(self, live: LiveCall) -> Any:
        if self.call.packet in DROPOUTS:
            (argument, _) = next(self.call.tensors())
            return live.tensor(argument)  # a constant is not dropped
        return OperatorCall(live.call, {**live.named(), "training": False}).run()  # there are no batch statistics

    def _mask(self, removed: Removed, x: Tensor) -> Tensor:
        if removed.copies:
            return removed.spread(x)
        key = (removed.argument, removed.axis, x.device, x.ndim)
        if key not in self._masks:
            self._masks[key] = removed.spread(x)
        return self._masks[key]


def masked_reader(plan: Plan, mode: Mode, liveness: Liveness, call: Call) -> MaskedReader | None:
    """The reader of a call under a plan; None if it computes the same as without the plan."""
    found = [removed_axis(plan, mode, call, read) for read in plan.graph.of(mode).reads.get(call.index, ())]
    removed = [item for item in found if item is not None]
    constant = call.packet in (aten.batch_norm, *DROPOUTS) and next(call.tensors())[1] in liveness.folded
    return MaskedReader(call, removed, constant=constant) if removed or constant else None


def statistic_without(live: LiveCall, masks: list[Tensor]) -> Any:
    """A statistic over the positions that are not removed along any axis. `masks` as in masked_statistics.py."""
    removed = masks[0]
    for other in masks[1:]:
        removed = masked_statistics.removed_on_either(removed, other)
    args, packet = live.named(), live.call.packet
    get = args.get
    if packet is aten.layer_norm:
        return masked_statistics.layer_norm(
            args["input"], removed, args["normalized_shape"], get("weight"), get("bias"), get("eps", 1e-5)
        )
    if packet is aten.rms_norm:
        return masked_statistics.rms_norm(args["input"], removed, args["normalized_shape"], get("weight"), get("eps"))
    if packet in (aten.batch_norm, aten.instance_norm):
        dims = [d for d in range(args["input"].ndim) if d != 1 and (d or packet is aten.batch_norm)]
        statistics = (get("running_mean"), get("running_var"), get("momentum", 0.1), get("eps", 1e-5))
        return masked_statistics.batch_norm(args["input"], removed, dims, get("weight"), get("bias"), *statistics)
    if packet is aten.group_norm:
        return masked_statistics.group_norm(
            args["input"], removed, args["num_groups"], get("weight"), get("bias"), get("eps", 1e-5)
        )
    keywords = {name: arg for name, arg in args.items() if name in ("keepdim", "correction", "dtype")}
    if "unbiased" in args:
        keywords["correction"] = 1 if args["unbiased"] else 0
    return _STATISTICS[packet](args["self"], removed, get("dim"), **keywords)
