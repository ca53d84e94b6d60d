"""What a gated reader computes.

Anywhere: multiply, and let autograd do the rest. A convolution on the CPU has a quicker way. Gates are zeros and ones, and
nearly all ones, so instead of a product the size of the tensor the few closed slices are set to zero for the length of the
convolution and put back. Neither a copy is made nor one kept for backward, and what is left is one pass for the gradient
of the gates.
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
_MANY = 0.2  # beyond this share of closed slices a product is quicker than putting them back one by one


def multiplied(x: Tensor, gate: Tensor) -> Tensor:
    return x * gate.to(x.dtype)


def gated_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """A convolution of gated channels; `gate` is rows x channels, a row an example, or one row for all."""
    rank = weight.ndim - 2
    if _quick(x, weight, gate, padding):
        how = ([*stride] * (rank // len(stride)), [*padding] * (rank // len(padding)), [*dilation] * (rank // len(dilation)))
        result: Tensor = _GatedConv.apply(x, weight, bias, gate, *how, groups)  # type: ignore[no-untyped-call]
        return result
    if gate.shape[0] == 1:
        weight = multiplied(weight, gate.reshape(1, -1, *[1] * rank))
    else:
        x = multiplied(x, gate.reshape(*gate.shape, *[1] * rank))
    return _CONVOLUTIONS[rank - 1](x, weight, bias, stride, padding, dilation, groups)


def _quick(x: Tensor, weight: Tensor, gate: Tensor, padding: Any) -> bool:
    if torch.compiler.is_compiling() or isinstance(padding, str) or x.device.type != "cpu":
        return False
    plain = type(x) is Tensor and x.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    target = weight if gate.shape[0] == 1 else x
    return plain and _dense(target)


def _dense(tensor: Tensor) -> bool:
    """Whether no two elements share memory, so that some can be set to zero for a while."""
    return tensor.is_contiguous() or (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


class _GatedConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, stride: Any, padding: Any, dilation: Any,
        groups: int,
    ) -> Tensor:  # fmt: skip
        ctx.settings = (stride, padding, dilation, False, [0] * len(stride), groups)
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight, gate)
        with _closed(x, weight, gate) as (open_x, open_weight):
            result: Tensor = aten.convolution.default(open_x, open_weight, bias, *ctx.settings)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, gate = ctx.saved_tensors
        one_row = gate.shape[0] == 1
        of_x, of_weight, of_bias, of_gate = ctx.needs_input_grad[:4]
        wanted = [of_x or (of_gate and not one_row), of_weight or (of_gate and one_row), of_bias and ctx.has_bias]
        with _closed(x, weight, gate) as (open_x, open_weight):
            sizes = [weight.shape[0]] if ctx.has_bias else None
            grad_x, grad_weight, grad_bias = aten.convolution_backward.default(
                grad, open_x, open_weight, sizes, *ctx.settings, wanted
            )
        grad_gate = None
        inner, outer = (grad_weight, weight) if one_row else (grad_x, x)
        if of_gate:
            grad_gate = torch.einsum("oc...,oc...->c", inner, outer)[None] if one_row else (inner * outer).flatten(2).sum(2)
        if inner is not None:
            _close_(inner, gate)
        return grad_x if of_x else None, grad_weight if of_weight else None, grad_bias, grad_gate, None, None, None, None


@contextmanager
def _closed(x: Tensor, weight: Tensor, gate: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both sides of the convolution with the closed channels at zero; afterwards they hold what they held."""
    one_row = gate.shape[0] == 1
    target = weight if one_row else x
    shut = gate == 0
    count = int(shut.sum())
    if count > _MANY * gate.numel():
        product = target * gate.reshape(*gate.shape, *[1] * (target.ndim - 2))
        yield (x, product) if one_row else (product, weight)
        return
    data = target.data  # shares memory but not the version, so that autograd still trusts what it has saved
    place = _place(shut, one_row)
    held = data[place]
    data[place] = 0
    try:
        yield x, weight
    finally:
        data[place] = held


def _close_(grad: Tensor, gate: Tensor) -> None:
    """Nothing flows back into closed channels."""
    shut = gate == 0
    if int(shut.sum()) > _MANY * gate.numel():
        grad *= gate.reshape(*gate.shape, *[1] * (grad.ndim - 2))
    else:
        grad[_place(shut, gate.shape[0] == 1)] = 0


def _place(shut: Tensor, one_row: bool) -> tuple[Any, ...]:
    rows, columns = shut.nonzero(as_tuple=True)
    return (slice(None), columns) if one_row else (rows, columns)
