"""What a gated reader computes.

Anywhere: multiply, and let autograd do the rest. A convolution on the CPU has a quicker way. Gates are zeros and ones, and
nearly all ones, so instead of a product the size of a large tensor the few closed slices are set to zero for the length of
the convolution and put back. Nothing is kept for backward but what a plain convolution keeps, and what is left is one pass
for the gradient of the gates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

aten = torch.ops.aten
_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_SMALL = 1 << 16  # elements; below, a product is quicker than anything else
_MANY = 0.2  # beyond this share of closed slices a product is quicker than putting them back one by one


def multiplied(x: Tensor, gate: Tensor) -> Tensor:
    return x * gate.to(x.dtype)


def gated_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, on_weight: bool, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Tensor:  # fmt: skip
    """A convolution of gated channels; `gate` is rows x channels: a row an example, or one row for the weight."""
    rank = weight.ndim - 2
    if on_weight and groups == 1 and x.numel() < weight.numel():
        on_weight = False  # one draw for all examples can stand on either side: on the smaller
    if _quick(x, weight, on_weight, padding):
        how = ([*stride] * (rank // len(stride)), [*padding] * (rank // len(padding)), [*dilation] * (rank // len(dilation)))
        result: Tensor = _GatedConv.apply(x, weight, bias, gate, on_weight, *how, groups)  # type: ignore[no-untyped-call]
        return result
    if on_weight:
        weight = multiplied(weight, gate.reshape(1, -1, *[1] * rank))
    else:
        x = multiplied(x, gate.reshape(*gate.shape, *[1] * rank))
    return _CONVOLUTIONS[rank - 1](x, weight, bias, stride, padding, dilation, groups)


def _quick(x: Tensor, weight: Tensor, on_weight: bool, padding: Any) -> bool:
    if torch.compiler.is_compiling() or isinstance(padding, str) or x.device.type != "cpu":
        return False
    plain = type(x) is Tensor and x.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    target = weight if on_weight else x
    return plain and _dense(target)


def _dense(tensor: Tensor) -> bool:
    """Whether no two elements share memory, so that some can be set to zero for a while."""
    return tensor.is_contiguous() or (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


class _GatedConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, on_weight: bool, stride: Any, padding: Any,
        dilation: Any, groups: int,
    ) -> Tensor:  # fmt: skip
        ctx.settings = (stride, padding, dilation, False, [0] * len(stride), groups)
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)
        ctx.closed = _Closed(gate, on_weight)
        with ctx.closed.out_of(x, weight) as (open_x, open_weight):
            result: Tensor = aten.convolution.default(open_x, open_weight, bias, *ctx.settings)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        closed: _Closed = ctx.closed
        of_x, of_weight, of_bias, of_gate = ctx.needs_input_grad[:4]
        with closed.out_of(x, weight) as (open_x, open_weight):
            sizes = [weight.shape[0]] if ctx.has_bias else None
            wanted = [
                of_x or (of_gate and not closed.on_weight),
                of_weight or (of_gate and closed.on_weight),
                of_bias and ctx.has_bias,
            ]
            grad_x, grad_weight, grad_bias = aten.convolution_backward.default(
                grad, open_x, open_weight, sizes, *ctx.settings, wanted
            )
        side, grad_side = (weight, grad_weight) if closed.on_weight else (x, grad_x)
        grad_gate = closed.gradient(grad_side, side) if of_gate else None
        closed.shut_(grad_side)
        return grad_x if of_x else None, grad_weight if of_weight else None, grad_bias, grad_gate, *[None] * 5


class _Closed:
    """The channels that one draw has closed, and the side of the convolution they are taken out of."""

    def __init__(self, gate: Tensor, on_weight: bool) -> None:
        self.gate = gate.detach()
        self.on_weight = on_weight
        self.one_row = gate.shape[0] == 1
        self.rows, self.columns = (self.gate == 0).nonzero(as_tuple=True)
        self.count = len(self.columns)
        self.many = self.count > _MANY * gate.numel()

    def _product(self, target: Tensor) -> Tensor:
        return target * self.gate.reshape(*self.gate.shape, *[1] * (target.ndim - 2))

    @contextmanager
    def out_of(self, x: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Both sides of the convolution with the closed channels at zero; afterwards they hold what they held."""
        if not self.count:
            yield x, weight
            return
        target = weight if self.on_weight else x
        if self.many or target.numel() <= _SMALL:
            product = self._product(target)
            yield (x, product) if self.on_weight else (product, weight)
            return
        data = target.data  # shares memory but not the version, so that autograd still trusts what it has saved
        held = data.index_select(1, self.columns) if self.one_row else data[self.rows, self.columns]
        self._zero_(data)
        try:
            yield x, weight
        finally:
            if self.one_row:
                data.index_copy_(1, self.columns, held)
            else:
                data.index_put_((self.rows, self.columns), held)

    def _zero_(self, data: Tensor) -> None:
        if self.one_row:
            data.index_fill_(1, self.columns, 0)
        else:
            data.index_put_((self.rows, self.columns), data.new_zeros(()))

    def gradient(self, grad: Tensor, target: Tensor) -> Tensor:
        """Of the gates, from the side they stand on: there it shows what a closed channel would have added, too."""
        space = [*range(2, target.ndim)]
        return (grad * target).sum([0, *space])[None] if self.one_row else (grad * target).sum(space)

    def shut_(self, grad: Tensor | None) -> None:
        """Nothing flows back into closed channels."""
        if grad is None or not self.count:
            return
        if self.many:
            grad.copy_(self._product(grad))
        else:
            self._zero_(grad)
