"""Batch norm of large, narrow channels_last tensors on a CPU, in training.

torch works on the channels of one pixel at a time, so that 15 channels take more than twice as long as 16, and a pruned network
has mostly such widths. Here some pixels that lie next to each other in memory count as one pixel with as many copies of every
channel; the statistics of the copies are then combined. The results are the same up to rounding. This reads the tensors more
often than torch does, so widths that torch is fast with, and small tensors, are left to torch. How much is gained depends on
the processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from gator.private_torch import saves_tensors_itself

aten = torch.ops.aten
_WIDE = 512  # channels: torch is fast with that many
_FAST_MULTIPLE = 16  # and with these
_LARGE = 2**16  # pixels: below that torch is about as fast
_LARGEST_GROUP = 32
_LEAST_PIXELS = 512  # of every copy: with fewer, copies differ much, and bf16 rounds what has to be corrected
_ARGUMENTS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_DEFAULTS = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}


class NarrowNorms(TorchFunctionMode):
    """Inside, batch norms in training mode are computed on groups of pixels, where the input is narrow and channels_last.

    There is no second derivative of these.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.batch_norm:
            given = _DEFAULTS | dict(zip(_ARGUMENTS, args, strict=False)) | dict(kwargs)
            x = given["input"]
            if _is_supported(x, given) and (group := group_size(x)) > 1:
                statistics = (given["running_mean"], given["running_var"])
                return _NarrowNorm.apply(  # type: ignore[no-untyped-call]
                    x, given["weight"], given["bias"], *statistics, given["momentum"], given["eps"], group
                )
        return func(*args, **kwargs)


def _is_supported(x: Tensor, given: Mapping[str, Any]) -> bool:
    """Whether this is a batch norm in training mode of a channels_last tensor on a CPU, with weights.

    A layer under gradient checkpointing is run again in backward, outside of this mode, and must save the same tensors then.
    """
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
        and given["weight"].shape == (x.shape[1],)
        and saves_tensors_itself()
        and not torch.compiler.is_compiling()
    )


def group_size(x: Tensor) -> int:
    """How many pixels count as one: a power of two."""
    channels = x.shape[1]
    pixels, size = x.numel() // max(channels, 1), 1
    if channels % _FAST_MULTIPLE == 0 or pixels < _LARGE:
        return 1
    while size < _LARGEST_GROUP and size * channels < _WIDE and pixels >= 2 * size * _LEAST_PIXELS and pixels % (4 * size) == 0:
        size *= 2
    return size


class _NarrowNorm(torch.autograd.Function):
    """Batch norm with the statistics of the batch, which also update the running ones."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        momentum: float, eps: float, group: int,
    ) -> Tensor:  # fmt: skip
        channels, count = x.shape[1], x.numel() // x.shape[1]
        unused = weight.new_zeros(2, group * channels)  # running statistics, which also say what to compute in
        found = aten.batch_norm_update_stats(_grouped(x, group), *unused, 0.0)
        means, variances = (each.view(group, channels) for each in found)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_(variance.mul(count / (count - 1)).to(running_var.dtype), momentum)
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.eps, ctx.group = eps, group
        return _normalized(x, _repeated(group, weight, bias, mean, variance), eps, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, mean, variance = ctx.saved_tensors
        group, channels = ctx.group, x.shape[1]
        scale = torch.rsqrt(variance + ctx.eps)
        means, variances, weights, scales = _repeated(group, mean, variance, weight, scale)
        # Exact but for the means of the gradients, which torch takes of every copy of a channel by itself.
        result, of_weight, of_bias = aten.native_batch_norm_backward(
            _grouped(grad.contiguous(memory_format=torch.channels_last), group), _grouped(x, group), weights, None, None, means,
            scales, True, ctx.eps, [True, True, True],
        )  # fmt: skip
        sums = torch.stack([of_weight, of_bias]).view(2, group, channels)
        deviations = (sums - sums.mean(1, keepdim=True)) * (weight * scale * (group * channels / x.numel()))
        correction = _normalized(x, (*deviations.view(2, -1), means, variances), ctx.eps, group)
        of_weight, of_bias = sums.sum(1)
        return correction.add_(_like(result, x)), of_weight, of_bias, None, None, None, None, None


def _normalized(x: Tensor, of_copies: tuple[Tensor, ...], eps: float, group: int) -> Tensor:
    """With this weight, bias, mean and variance of every copy of a channel."""
    result = torch.empty_like(x)  # a tensor of its own, not a view: the user's code may change it in place
    unused = (of_copies[0].new_empty(0), of_copies[0].new_empty(0))
    aten.native_batch_norm.out(
        _grouped(x, group), *of_copies, False, 0.0, eps, out=_grouped(result, group), save_mean=unused[0], save_invstd=unused[1]
    )
    return result


def _repeated(group: int, *of_channels: Tensor) -> tuple[Tensor, ...]:
    return torch.stack(of_channels).repeat(1, group).unbind()


def _grouped(x: Tensor, group: int) -> Tensor:
    """The same memory with `group` pixels as one. Two of them in a column: a single one would not be channels_last."""
    return x.permute(0, 2, 3, 1).view(-1, 2, 1, group * x.shape[1]).permute(0, 3, 1, 2)


def _like(grouped: Tensor, x: Tensor) -> Tensor:
    """The same memory in the shape of x."""
    return grouped.permute(0, 2, 3, 1).view(x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
