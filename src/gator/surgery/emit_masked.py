"""`MaskedEmitter`: the graph of a masked network, with removed channels kept out wherever an operator mixes channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from gator.graph.program import BatchInt, Call
from gator.surgery import masked_statistics
from gator.surgery.emit import Emitter
from gator.surgery.layers import Leaf
from gator.surgery.liveness import DROPOUTS

aten = torch.ops.aten
FILL = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
_STATISTICS: dict[Any, Callable[..., Any]] = {
    aten.mean: masked_statistics.mean,
    aten.var: masked_statistics.var,
    aten.std: masked_statistics.std,
    aten.var_mean: masked_statistics.var_mean,
    aten.std_mean: masked_statistics.std_mean,
}


class Flag(nn.Module):
    """Returns whether another module is in train mode."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = (module,)  # in a tuple, so that it is not registered as a submodule

    def forward(self) -> bool:
        return self._module[0].training


class MaskedEmitter(Emitter):
    """Refers to the model's own layers and parameters."""

    def flag(self, module: str) -> fx.Node:
        key = "_flag_" + module.replace(".", "_")
        self.objects[key] = Flag(self.model.get_submodule(module))
        return self.graph.call_module(key, ())

    def write(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        found = [(read, self._removed(call, read)) for read in self.labelled.reads.get(call.index, ())]
        reads = [(read, removed) for read, removed in found if removed is not None]
        if call.packet is aten.batch_norm and call.value_at("input") in self.liveness.folded:
            # Its input is constant, so there are no batch statistics.
            return self.call_op(call.op, {**args, "training": False})
        if call.packet in DROPOUTS:
            (name, _), value = next(call.tensors())
            if value in self.liveness.folded:
                return args[name]  # a constant is not dropped
        for read, removed in reads:
            name, position = read.argument
            fill = FILL.get(read.kind)
            if fill is None:
                continue
            target = args[name] if position is None else args[name][position]
            masked = self.graph.call_function(aten.masked_fill.Scalar, (target, removed, fill))
            if position is None:
                args[name] = masked
            else:
                args[name][position] = masked
                leaf = None
        masks = [removed for read, removed in reads if read.kind not in FILL]
        if masks:
            return self.statistics_without_removed(call, args, masks)
        return self.plain(call, leaf, args)

    def _removed(self, call: Call, read: Any) -> fx.Node | None:
        (name, position), value = read.argument, call.value_at(read.argument)
        alive = self.alive(value, read.axis)
        if alive is None:
            return None
        shape = self.program.values[value].shape
        tail = [1] * (len(shape) - read.axis - 1)
        size = shape[read.axis]
        key = f"_removed_{self.mode}_{call.index}_{name}_{position}_{read.axis}"
        if isinstance(size, BatchInt):
            batch = self.program.batch or 1
            times = self.size(BatchInt(1, 0, batch))
            if (alive == np.tile(alive[: size.slope], batch)).all():
                node = self.index_tensor(~alive[: size.slope], key)
                node = self.graph.call_function(aten.repeat.default, (node, [times]))
            else:  # the batch is the inner factor; there is no third case
                node = self.index_tensor(~alive[::batch], key)
                node = self.graph.call_function(aten.repeat_interleave.self_int, (node, times))
            return self.graph.call_function(aten.reshape.default, (node, [-1, *tail]))
        return self.index_tensor((~alive).reshape(-1, *tail), key)

    def statistics_without_removed(self, call: Call, args: dict[str, Any], removed_axes: list[fx.Node]) -> Any:
        """A statistic over the positions that are not removed along any axis."""
        removed = removed_axes[0]
        for other in removed_axes[1:]:
            removed = self.graph.call_function(masked_statistics.removed_on_either, (removed, other))
        get = args.get
        parts: tuple[Any, ...]
        if call.packet is aten.layer_norm:
            parts = (args["input"], removed, args["normalized_shape"], get("weight"), get("bias"), get("eps", 1e-5))
            return self.graph.call_function(masked_statistics.layer_norm, parts)
        if call.packet is aten.rms_norm:
            parts = (args["input"], removed, args["normalized_shape"], get("weight"), get("eps"))
            return self.graph.call_function(masked_statistics.rms_norm, parts)
        if call.packet in (aten.batch_norm, aten.instance_norm):
            statistics = (get("running_mean"), get("running_var"), get("momentum", 0.1), get("eps", 1e-5))
            dims = [
                d for d in range(len(self.shape(call.value_at("input")))) if d != 1 and (d or call.packet is aten.batch_norm)
            ]
            parts = (args["input"], removed, dims, get("weight"), get("bias"), *statistics)
            return self.graph.call_function(masked_statistics.batch_norm, parts)
        if call.packet is aten.group_norm:
            parts = (args["input"], removed, args["num_groups"], get("weight"), get("bias"), get("eps", 1e-5))
            return self.graph.call_function(masked_statistics.group_norm, parts)
        keywords = {name: arg for name, arg in args.items() if name in ("keepdim", "correction", "dtype")}
        if "unbiased" in args:
            keywords["correction"] = 1 if args["unbiased"] else 0
        return self.graph.call_function(_STATISTICS[call.packet], (args["self"], removed, get("dim")), keywords)
