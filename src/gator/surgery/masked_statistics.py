"""Statistics over the living channels only: what a masked network uses where a cut one simply has fewer channels.

`dead` is shaped to broadcast against the input: boolean, true where a position is gone, or (for gates in training) a number,
one where it is gone, that gradients flow back to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def dead_on_either(one: Tensor, other: Tensor) -> Tensor:
    return one | other if one.dtype == torch.bool else 1 - (1 - one) * (1 - other)


def _count(x: Tensor, dead: Tensor, dims: Sequence[int], *, least: int = 0) -> Tensor | float:
    """How many living positions are averaged over, at least `least`; a tensor with `dims` of size one where that differs."""
    if dead.dtype == torch.bool:
        total = math.prod(x.shape[d] for d in dims)
        return max(total * float((~dead).sum()) / dead.numel(), least)
    dead = dead.reshape(*[1] * (x.ndim - dead.ndim), *dead.shape)
    times = math.prod(x.shape[d] for d in dims if dead.shape[d] == 1)
    return ((1 - dead).sum(list(dims), keepdim=True) * times).clamp(min=least)


def _living(x: Tensor, dead: Tensor) -> Tensor:
    """The input with the dead at zero."""
    return x.masked_fill(dead, 0) if dead.dtype == torch.bool else x * (1 - dead)


def mean(x: Tensor, dead: Tensor, dim: Sequence[int] | None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    dims = _dims(x, dim)
    count = _count(x, dead, dims, least=0 if dead.dtype == torch.bool else 1)
    return _squeezed(_living(x, dead).sum(dims, keepdim=True, dtype=dtype) / count, dims, keepdim)


def var(x: Tensor, dead: Tensor, dim: Sequence[int] | None, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    dims = _dims(x, dim)
    count = _count(x, dead, dims, least=0 if dead.dtype == torch.bool else 1)
    centred = _living(x - _living(x, dead).sum(dims, keepdim=True) / count, dead)
    less = count - (1 if correction is None else correction)
    less = less.clamp(min=1) if isinstance(less, Tensor) else max(less, 0)
    return _squeezed((centred * centred).sum(dims, keepdim=True) / less, dims, keepdim)


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


def _squeezed(x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    return x if keepdim else x.squeeze(tuple(dims))


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
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    wide, dead = _wide(x), _wide(dead)
    alive = _living(wide, dead)
    square = (alive * alive).sum(dims, keepdim=True) / _count(wide, dead, dims, least=1)
    return _affine((wide * torch.rsqrt(square + eps)).to(x.dtype), weight, None)


def group_norm(x: Tensor, dead: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    split = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    rows = dead.shape[0] if dead.ndim == x.ndim else 1  # gates may have a row an example
    dead_split = dead.reshape(rows, groups, x.shape[1] // groups, *[1] * (x.ndim - 2))
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
    wide, dead = _wide(x), _wide(dead)
    count = _count(wide, dead, dims, least=1)
    centred = _living(wide - _living(wide, dead).sum(dims, keepdim=True) / count, dead)
    return (centred * torch.rsqrt((centred * centred).sum(dims, keepdim=True) / count + eps)).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    """Half precision is added up in single, as torch's own norms do."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias
