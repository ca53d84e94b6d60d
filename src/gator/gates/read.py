"""What a gated reader computes.

Anywhere: multiply, and let autograd do the rest. A convolution on the CPU has a quicker way where the product would be large.
Gates are zeros and ones, and nearly all ones, so instead of a product the few closed slices are set to zero for the length of
the convolution and put back. Nothing is kept for backward but what a plain convolution keeps, and what is left is one pass
for the gradient of the gates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

aten = torch.ops.aten
_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_SMALL = 1 << 18  # elements; up to here a product that autograd knows is quicker than anything written in Python
_TINY = 1 << 16  # elements; up to here what counts is the number of calls
_MANY = 0.2  # beyond this share of closed slices a product is quicker than putting them back one by one


def multiplied(x: Tensor, gate: Tensor) -> Tensor:
    return x * gate.to(x.dtype)


def conv_of_gated(
    x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, on_weight: bool, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Tensor:  # fmt: skip
    """A convolution of gated channels, the way that is quicker for its size."""
    if on_weight and groups == 1 and x.numel() < weight.numel():
        on_weight = False  # one draw for all examples can stand on either side: on the smaller
    small = torch.compiler.is_compiling() or (weight if on_weight else x).numel() <= _SMALL
    way = _multiplied_conv if small else gated_conv
    return way(x, weight, bias, gate, on_weight, stride, padding, dilation, groups)


def gated_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, on_weight: bool, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Tensor:  # fmt: skip
    """The same without a large product, if possible; `gate` is rows x channels: a row an example, or one for the weight."""
    if not _quick(x, weight, on_weight, padding):
        return _multiplied_conv(x, weight, bias, gate, on_weight, stride, padding, dilation, groups)
    rank = weight.ndim - 2
    how = ([*stride] * (rank // len(stride)), [*padding] * (rank // len(padding)), [*dilation] * (rank // len(dilation)))
    result: Tensor = _GatedConv.apply(x, weight, bias, gate, on_weight, *how, groups)  # type: ignore[no-untyped-call]
    return result


def _multiplied_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, on_weight: bool, *settings: Any
) -> Tensor:  # fmt: skip
    rank = weight.ndim - 2
    if on_weight:
        weight = _multiplied_weight(weight, gate)
    else:
        x = multiplied(x, gate.reshape(*gate.shape, *[1] * rank))
    return _CONVOLUTIONS[rank - 1](x, weight, bias, *settings)


def _multiplied_weight(weight: Tensor, gate: Tensor) -> Tensor:
    kernel = weight.shape[2:].numel()
    if torch.compiler.is_compiling() or kernel == 1 or weight.numel() <= _TINY or not weight.is_contiguous():
        return multiplied(weight, gate.reshape(1, -1, *[1] * (weight.ndim - 2)))
    # In long rows: to spread a gate over the few elements of a kernel takes three times as long, and so does its backward.
    return multiplied(weight.flatten(1), gate.repeat_interleave(kernel, 1)).view_as(weight)


def _quick(x: Tensor, weight: Tensor, on_weight: bool, padding: Any) -> bool:
    if torch.compiler.is_compiling() or isinstance(padding, str) or x.device.type != "cpu":
        return False
    plain = type(x) is Tensor and x.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    return plain and _dense(weight if on_weight else x)


def _dense(tensor: Tensor) -> bool:
    """Whether no two elements share memory, so that some can be set to zero for a while."""
    return tensor.is_contiguous() or (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


class _GatedConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, on_weight: bool, stride: Any, padding: Any,
        dilation: Any, groups: int,
    ) -> Tensor:  # fmt: skip
        ctx.settings = settings = (stride, padding, dilation, False, [0] * len(stride), groups)
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)
        ctx.closed = closed = _Closed(gate, on_weight)
        target = weight if on_weight else x
        opened, held = closed.take_out(target)
        try:
            sides = (x, opened) if on_weight else (opened, weight)
            result: Tensor = aten.convolution.default(*sides, bias, *settings)
            return result
        finally:
            closed.put_back(target, held)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        closed: _Closed = ctx.closed
        on_weight = closed.on_weight
        of_x, of_weight, of_bias, of_gate = ctx.needs_input_grad[:4]
        wanted = [of_x or (of_gate and not on_weight), of_weight or (of_gate and on_weight), of_bias and ctx.has_bias]
        sizes = [weight.shape[0]] if ctx.has_bias else None
        target = weight if on_weight else x
        opened, held = closed.take_out(target)
        try:
            sides = (x, opened) if on_weight else (opened, weight)
            grad_x, grad_weight, grad_bias = aten.convolution_backward.default(grad, *sides, sizes, *ctx.settings, wanted)
        finally:
            closed.put_back(target, held)
        grad_side = grad_weight if on_weight else grad_x
        grad_gate = closed.gradient(grad_side, target) if of_gate else None
        closed.shut_(grad_side)
        return grad_x if of_x else None, grad_weight if of_weight else None, grad_bias, grad_gate, *[None] * 5


class _Closed:
    """The channels that one draw has closed, and the side of the convolution they are taken out of."""

    def __init__(self, gate: Tensor, on_weight: bool) -> None:
        self.gate = gate.detach()
        self.on_weight = on_weight
        self.one_row = gate.shape[0] == 1
        where = np.nonzero(self.gate.numpy() == 0)
        self.count = len(where[1])
        self.many = self.count > _MANY * gate.numel()
        if self.count and not self.many:
            self.rows, self.columns = map(torch.from_numpy, where)

    def _product(self, target: Tensor) -> Tensor:
        return multiplied(target, self.gate.reshape(*self.gate.shape, *[1] * (target.ndim - 2)))

    def take_out(self, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """A side of the convolution with its closed channels at zero, and what has to be put back afterwards."""
        if not self.count:
            return target, None
        if self.many:
            return self._product(target), None
        data = target.data  # shares memory but not the version, so that autograd still trusts what it has saved
        held = data.index_select(1, self.columns) if self.one_row else data[self.rows, self.columns]
        self._zero_(data)
        return target, held

    def put_back(self, target: Tensor, held: Tensor | None) -> None:
        if held is None:
            return
        if self.one_row:
            target.data.index_copy_(1, self.columns, held)
        else:
            target.data.index_put_((self.rows, self.columns), held)

    def _zero_(self, data: Tensor) -> None:
        if self.one_row:
            data.index_fill_(1, self.columns, 0)
        else:
            data.index_put_((self.rows, self.columns), data.new_zeros(()))

    def gradient(self, grad: Tensor, target: Tensor) -> Tensor:
        """Of the gates, from the side they stand on: there it shows what a closed channel would have added, too."""
        product = grad * target
        space = [*range(2, target.ndim)]
        if self.on_weight:  # along the long rows first
            return product.sum(0, keepdim=True).sum(space)
        each = product.sum(space)
        return each.sum(0, keepdim=True) if self.one_row else each

    def shut_(self, grad: Tensor | None) -> None:
        """Nothing flows back into closed channels."""
        if grad is None or not self.count:
            return
        if self.many:
            grad.copy_(self._product(grad))
        else:
            self._zero_(grad)
