"""What a gated reader computes. It never writes into a tensor that somebody else can see, not even for a moment.

In general a reader multiplies what it reads by the gates, and autograd does the rest. Autograd keeps the product for backward,
though. A gated weight is small, but with a draw for each example the product is as large as an activation. A large convolution
on the CPU therefore sets the closed channels of a copy to zero and copies again in backward: it keeps what a plain convolution
keeps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

aten = torch.ops.aten
Closed = tuple[Tensor, Tensor]  # the closed gates of a draw: rows and columns
_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_SMALL = 1 << 18  # elements; up to here a product that autograd knows is faster than a function written in Python
_TINY = 1 << 16  # elements; up to here the time depends on the number of calls
_MANY = 0.1  # above this share of closed channels a product is faster than setting them to zero one by one


def multiplied(x: Tensor, gate: Tensor) -> Tensor:
    return x * gate.to(x.dtype)


def closed_channels(gate: Tensor) -> Closed | None:
    """Which gates of a draw are closed, where convolutions on the CPU use it."""
    if torch.compiler.is_compiling() or gate.device.type != "cpu":
        return None
    rows, columns = torch.nonzero(gate == 0, as_tuple=True)
    return rows, columns


def conv_of_gated_weight(
    x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """A convolution with one draw (a single row of gates) for all examples, which can gate either side: the smaller one."""
    rank = weight.ndim - 2
    if groups == 1 and x.numel() < weight.numel() and x.ndim == weight.ndim:
        x = multiplied(x, gate.reshape(1, -1, *[1] * rank))
    else:
        weight = _multiplied_weight(weight, gate)
    return _CONVOLUTIONS[rank - 1](x, weight, bias, stride, padding, dilation, groups)


def _multiplied_weight(weight: Tensor, gate: Tensor) -> Tensor:
    kernel = weight.shape[2:].numel()
    if torch.compiler.is_compiling() or kernel == 1 or weight.numel() <= _TINY or not weight.is_contiguous():
        return multiplied(weight, gate.reshape(1, -1, *[1] * (weight.ndim - 2)))
    # In long rows: broadcasting a gate over the few elements of a kernel takes three times as long, and so does its backward.
    return multiplied(weight.flatten(1), gate.repeat_interleave(kernel, 1)).view_as(weight)


def conv_of_gated_input(
    x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, closed: Closed | None,
    stride: Any, padding: Any, dilation: Any, groups: int,
) -> Tensor:  # fmt: skip
    """A convolution with a draw (a row of gates) for each example."""
    rank = weight.ndim - 2
    if closed is None or isinstance(padding, str) or not _is_large(x, weight, gate):
        x = multiplied(x, gate.reshape(*gate.shape, *[1] * rank))
        return _CONVOLUTIONS[rank - 1](x, weight, bias, stride, padding, dilation, groups)
    if torch.is_autocast_enabled("cpu"):  # it does not reach the operators inside a function of our own
        x, weight, bias = (_lowered(tensor) for tensor in (x, weight, bias))
    how = (_by_axis(stride, rank), _by_axis(padding, rank), _by_axis(dilation, rank))
    result: Tensor = _GatedConv.apply(x, weight, bias, gate, closed, *how, groups)  # type: ignore[no-untyped-call]
    return result


def _by_axis(setting: Any, rank: int) -> list[int]:
    """A stride, a padding or a dilation for every spatial axis. It is given as one number, as a list of one, or as a list."""
    each = [setting] if isinstance(setting, int) else [*setting]
    return each * (rank // len(each))


def _is_large(x: Tensor, weight: Tensor, gate: Tensor) -> bool:
    if x.numel() <= _SMALL or type(x) is not Tensor or x.shape[0] != gate.shape[0]:
        return False
    return x.dtype == weight.dtype or torch.is_autocast_enabled("cpu")


def _lowered(tensor: Tensor | None) -> Any:
    """What autocast makes of an argument of a convolution."""
    if tensor is None or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype("cpu"))


class _GatedConv(torch.autograd.Function):
    """Saves its input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, closed: Closed, stride: Any, padding: Any,
        dilation: Any, groups: int,
    ) -> Tensor:  # fmt: skip
        ctx.settings = settings = (stride, padding, dilation, False, [0] * len(stride), groups)
        ctx.has_bias, ctx.closed = bias is not None, closed
        ctx.many = len(closed[0]) > _MANY * gate.numel()
        ctx.save_for_backward(x, weight, gate)
        result: Tensor = aten.convolution.default(_gated_copy(x, gate, closed, ctx.many), weight, bias, *settings)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, gate = ctx.saved_tensors
        closed: Closed = ctx.closed
        of_x, of_weight, of_bias, of_gate = ctx.needs_input_grad[:4]
        wanted = [of_x or of_gate, of_weight, of_bias and ctx.has_bias]
        sizes = [weight.shape[0]] if ctx.has_bias else None
        gated = _gated_copy(x, gate, closed, ctx.many)
        grad_x, grad_weight, grad_bias = aten.convolution_backward.default(grad, gated, weight, sizes, *ctx.settings, wanted)
        grad_in, grad_gate = None, None
        if grad_x is not None:
            # The copy, if there is one, has served; its memory takes the product.
            product = grad_x * x if gated is x else torch.mul(grad_x, x, out=gated)
            grad_gate = product.sum([*range(2, x.ndim)]).to(gate.dtype)
            grad_in = grad_x.mul_(_spread(gate, x)) if ctx.many else grad_x.index_put_(closed, x.new_zeros(()))
        return grad_in if of_x else None, grad_weight, grad_bias, grad_gate if of_gate else None, *[None] * 5


def _gated_copy(x: Tensor, gate: Tensor, closed: Closed, many: bool) -> Tensor:
    """`x` with the closed channels at zero: a copy, unless none is closed."""
    if many:
        return x * _spread(gate, x)
    return x.clone().index_put_(closed, x.new_zeros(())) if len(closed[0]) else x


def _spread(gate: Tensor, x: Tensor) -> Tensor:
    return gate.to(x.dtype).reshape(*gate.shape, *[1] * (x.ndim - 2))
