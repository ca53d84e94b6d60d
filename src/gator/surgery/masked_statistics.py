"""Means, variances and norms that leave removed channels out, for masked and gated networks.

`removed` broadcasts against the input. It is a boolean mask, true where a position is removed, or (for gates in training) a
float tensor, one where it is removed, through which gradients flow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def removed_on_either(one: Tensor, other: Tensor) -> Tensor:
    return one | other if one.dtype == torch.bool else 1 - (1 - one) * (1 - other)


def _count(x: Tensor, removed: Tensor, dims: Sequence[int], *, least: int = 0) -> Tensor | float:
    """The number of remaining positions along `dims`, at least `least`; a tensor with `dims` of size one if it is not the same
    everywhere."""
    if removed.dtype == torch.bool:
        total = math.prod(x.shape[d] for d in dims)
        return max(total * float((~removed).sum()) / removed.numel(), least)
    removed = removed.reshape(*[1] * (x.ndim - removed.ndim), *removed.shape)
    times = math.prod(x.shape[d] for d in dims if removed.shape[d] == 1)
    return ((1 - removed).sum(list(dims), keepdim=True) * times).clamp(min=least)


def _zero_removed(x: Tensor, removed: Tensor) -> Tensor:
    """The input with removed positions set to zero."""
    return x.masked_fill(removed, 0) if removed.dtype == torch.bool else x * (1 - removed)


def mean(
    x: Tensor, removed: Tensor, dim: Sequence[int] | None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    dims = _dims(x, dim)
    count = _count(x, removed, dims, least=0 if removed.dtype == torch.bool else 1)
    return _squeezed(_zero_removed(x, removed).sum(dims, keepdim=True, dtype=dtype) / count, dims, keepdim)


def var(x: Tensor, removed: Tensor, dim: Sequence[int] | None, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    dims = _dims(x, dim)
    count = _count(x, removed, dims, least=0 if removed.dtype == torch.bool else 1)
    centred = _zero_removed(x - _zero_removed(x, removed).sum(dims, keepdim=True) / count, removed)
    divisor = count - (1 if correction is None else correction)
    divisor = divisor.clamp(min=1) if isinstance(divisor, Tensor) else max(divisor, 0)
    return _squeezed((centred * centred).sum(dims, keepdim=True) / divisor, dims, keepdim)


def std(x: Tensor, removed: Tensor, dim: Sequence[int] | None, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    return var(x, removed, dim, correction, keepdim).sqrt()


def var_mean(
    x: Tensor, removed: Tensor, dim: Sequence[int] | None, correction: float | None = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return var(x, removed, dim, correction, keepdim), mean(x, removed, dim, keepdim)


def std_mean(
    x: Tensor, removed: Tensor, dim: Sequence[int] | None, correction: float | None = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return std(x, removed, dim, correction, keepdim), mean(x, removed, dim, keepdim)


def _squeezed(x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    return x if keepdim else x.squeeze(tuple(dims))


def _dims(x: Tensor, dim: Sequence[int] | int | None) -> list[int]:
    if dim is None or dim == []:
        return list(range(x.ndim))
    return [dim] if isinstance(dim, int) else list(dim)


def layer_norm(
    x: Tensor, removed: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    return _affine(_standardised(x, removed, dims, eps), weight, bias)


def rms_norm(x: Tensor, removed: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    wide, removed = _wide(x), _wide(removed)
    remaining = _zero_removed(wide, removed)
    square = (remaining * remaining).sum(dims, keepdim=True) / _count(wide, removed, dims, least=1)
    return _affine((wide * torch.rsqrt(square + eps)).to(x.dtype), weight, None)


def group_norm(x: Tensor, removed: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    split = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    rows = removed.shape[0] if removed.ndim == x.ndim else 1  # gates may have one row per example
    removed_split = removed.reshape(rows, groups, x.shape[1] // groups, *[1] * (x.ndim - 2))
    normal = _standardised(x.reshape(split), removed_split, list(range(2, len(split))), eps).reshape(x.shape)
    shape = [1, -1, *[1] * (x.ndim - 2)]
    return _affine(normal, None if weight is None else weight.reshape(shape), None if bias is None else bias.reshape(shape))


def batch_norm(
    x: Tensor,
    removed: Tensor,
    dims: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch or instance norm in train mode, over `dims`; running statistics are updated as torch does."""
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            others = [d for d in range(x.ndim) if d != 1]
            running_mean.lerp_(mean(x, removed, others), momentum)
            running_var.lerp_(var(x, removed, others), momentum)
    shape = [1, -1, *[1] * (x.ndim - 2)]
    normal = _standardised(x, removed, dims, eps)
    return _affine(normal, None if weight is None else weight.reshape(shape), None if bias is None else bias.reshape(shape))


def _standardised(x: Tensor, removed: Tensor, dims: list[int], eps: float) -> Tensor:
    wide, removed = _wide(x), _wide(removed)
    count = _count(wide, removed, dims, least=1)
    centred = _zero_removed(wide - _zero_removed(wide, removed).sum(dims, keepdim=True) / count, removed)
    return (centred * torch.rsqrt((centred * centred).sum(dims, keepdim=True) / count + eps)).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    """Half precision is accumulated in single precision, as in torch's own norms."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return (scaled if bias is None else scaled + bias).to(x.dtype)
