"""Statistics over the living channels only: what a masked network uses where a cut one simply has fewer channels.

`dead` is a boolean tensor, true where a position is gone, shaped to broadcast against the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def _count(x: Tensor, dead: Tensor, dims: Sequence[int]) -> float:
    """How many living positions are averaged over."""
    total = math.prod(x.shape[d] for d in dims)
    return total * float((~dead).sum()) / dead.numel()


def mean(x: Tensor, dead: Tensor, dim: Sequence[int] | None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    dims = _dims(x, dim)
    return x.masked_fill(dead, 0).sum(dims, keepdim=keepdim, dtype=dtype) / _count(x, dead, dims)


def var(x: Tensor, dead: Tensor, dim: Sequence[int] | None, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    dims = _dims(x, dim)
    count = _count(x, dead, dims)
    centred = (x - x.masked_fill(dead, 0).sum(dims, keepdim=True) / count).masked_fill(dead, 0)
    return (centred * centred).sum(dims, keepdim=keepdim) / max(count - (1 if correction is None else correction), 0)


def std(x: Tensor, dead: Tensor, dim: Sequence[int] | None, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    return var(x, dead, dim, correction, keepdim).sqrt()


def var_mean(
    x: Tensor, dead: Tensor, dim: Sequence[int] | None, correction: float | None = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return var(x, dead, dim, correction, keepdim), mean(x, dead, dim, keepdim)


def std_mean(
    x: Tensor, dead: Tensor, dim: Sequence[int] | None, correction: float | None = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return std(x, dead, dim, correction, keepdim), mean(x, dead, dim, keepdim)


def _dims(x: Tensor, dim: Sequence[int] | int | None) -> list[int]:
    if dim is None or dim == []:
        return list(range(x.ndim))
    return [dim] if isinstance(dim, int) else list(dim)


def layer_norm(
    x: Tensor, dead: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    return _affine(_standardised(x, dead, dims, eps), weight, bias)


def rms_norm(x: Tensor, dead: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    alive = x.masked_fill(dead, 0)
    square = (alive * alive).sum(dims, keepdim=True) / max(_count(x, dead, dims), 1)
    return _affine(x * torch.rsqrt(square + (torch.finfo(x.dtype).eps if eps is None else eps)), weight, None)


def group_norm(x: Tensor, dead: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    split = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    dead_split = dead.reshape(1, groups, x.shape[1] // groups, *[1] * (x.ndim - 2))
    normal = _standardised(x.reshape(split), dead_split, list(range(2, len(split))), eps).reshape(x.shape)
    shape = [1, -1, *[1] * (x.ndim - 2)]
    return _affine(normal, None if weight is None else weight.reshape(shape), None if bias is None else bias.reshape(shape))


def batch_norm(
    x: Tensor,
    dead: Tensor,
    dims: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch or instance norm in train mode, over `dims`; running statistics are advanced as torch does."""
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            others = [d for d in range(x.ndim) if d != 1]
            running_mean.lerp_(mean(x, dead, others), momentum)
            running_var.lerp_(var(x, dead, others), momentum)
    shape = [1, -1, *[1] * (x.ndim - 2)]
    normal = _standardised(x, dead, dims, eps)
    return _affine(normal, None if weight is None else weight.reshape(shape), None if bias is None else bias.reshape(shape))


def _standardised(x: Tensor, dead: Tensor, dims: list[int], eps: float) -> Tensor:
    count = max(_count(x, dead, dims), 1)
    centred = (x - x.masked_fill(dead, 0).sum(dims, keepdim=True) / count).masked_fill(dead, 0)
    return centred * torch.rsqrt((centred * centred).sum(dims, keepdim=True) / count + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias
