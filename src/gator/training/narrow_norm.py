"""Batch norm of narrow channels_last tensors on a CPU, several times as fast as torch's own.

torch works on the channels of one pixel at a time, so that 15 channels take more than twice as long as 16, and a pruned network
has mostly such widths. Here `rows` pixels that lie next to each other in memory count as one pixel with `rows` times the
channels; the statistics of the copies of a channel are then combined. The results are the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
_WIDE = 512  # channels: torch is fast with that many
_MOST_ROWS = 32
_ARGUMENTS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_DEFAULTS = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}


class NarrowNorms(TorchFunctionMode):
    """Inside, batch norms of narrow channels_last tensors on a CPU are computed as above while they train."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.batch_norm:
            given = _DEFAULTS | dict(zip(_ARGUMENTS, args, strict=False)) | dict(kwargs)
            x = given["input"]
            if _is_usual(x, given) and (rows := rows_together(x)) > 1:
                statistics = (given["running_mean"], given["running_var"])
                return _NarrowNorm.apply(  # type: ignore[no-untyped-call]
                    x, given["weight"], given["bias"], *statistics, given["momentum"], given["eps"], rows
                )
        return func(*args, **kwargs)


def _is_usual(x: Tensor, given: Mapping[str, Any]) -> bool:
    """Whether this is a batch norm in training on a CPU, with weights, and with everything in memory where it has to be."""
    floats = (torch.float32, torch.float64)
    return (
        given["training"]
        and type(x) is Tensor
        and x.device.type == "cpu"
        and x.ndim == 4
        and x.dtype in (torch.bfloat16, *floats)
        and x.is_contiguous(memory_format=torch.channels_last)
        and given["weight"] is not None
        and given["bias"] is not None
        and given["weight"].dtype in (floats if x.dtype is torch.bfloat16 else (x.dtype,))
    )


def rows_together(x: Tensor) -> int:
    """How many pixels count as one: a power of two."""
    channels = x.shape[1]
    pixels, rows = x.numel() // max(channels, 1), 1
    while rows < _MOST_ROWS and rows * channels < _WIDE and pixels and pixels % (4 * rows) == 0:
        rows *= 2
    return rows


class _NarrowNorm(torch.autograd.Function):
    """Batch norm with the statistics of the batch, which also update the running ones."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        momentum: float, eps: float, rows: int,
    ) -> Tensor:  # fmt: skip
        channels, count = x.shape[1], x.numel() // x.shape[1]
        unused = weight.new_zeros(2, rows * channels)  # running statistics, which also say what to compute in
        means, variances = (each.view(rows, channels) for each in aten.batch_norm_update_stats(_joined(x, rows), *unused, 0.0))
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_(variance.mul(count / (count - 1)).to(running_var.dtype), momentum)
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.eps, ctx.rows = eps, rows
        return _normalized(x, mean, variance, weight, bias, eps, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, mean, variance = ctx.saved_tensors
        rows, eps, channels = ctx.rows, ctx.eps, x.shape[1]
        # With fixed statistics the gradients of weight and bias are the sums that the rest of the gradient of x needs.
        direct, of_weight, of_bias = aten.native_batch_norm_backward(
            _joined(grad.contiguous(memory_format=torch.channels_last), rows), _joined(x, rows),
            *_repeated(rows, weight, mean, variance), None, None, False, eps, [True, True, True],
        )  # fmt: skip
        of_weight, of_bias = (each.view(rows, channels).sum(0) for each in (of_weight, of_bias))
        scale = weight * torch.rsqrt(variance + eps) * (channels / x.numel())
        indirect = _normalized(x, mean, variance, scale * of_weight, scale * of_bias, eps, rows)
        return _apart(direct, x).sub_(indirect), of_weight, of_bias, None, None, None, None, None


def _normalized(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float, rows: int) -> Tensor:
    result = torch.empty_like(x)  # a tensor of its own, not a view: the user's code may change it in place
    none = weight.new_empty(0)
    aten.native_batch_norm.out(
        _joined(x, rows), *_repeated(rows, weight, bias, mean, variance), False, 0.0, eps,
        out=_joined(result, rows), save_mean=none, save_invstd=none.clone(),
    )  # fmt: skip
    return result


def _repeated(rows: int, *of_channels: Tensor) -> tuple[Tensor, ...]:
    return torch.stack(of_channels).repeat(1, rows).unbind()


def _joined(x: Tensor, rows: int) -> Tensor:
    """The same memory with `rows` pixels as one. Two of them in a column: a single one would not be channels_last."""
    return x.permute(0, 2, 3, 1).view(-1, 2, 1, rows * x.shape[1]).permute(0, 3, 1, 2)


def _apart(joined: Tensor, x: Tensor) -> Tensor:
    """The same memory in the shape of x."""
    return joined.permute(0, 2, 3, 1).view(x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
