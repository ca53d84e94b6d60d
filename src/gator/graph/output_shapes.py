"""Fast output shapes of common operators: running an operator on the meta device takes up to a millisecond per call.

Only the common case is handled: contiguous arguments of matching shapes. For anything else, errors included, the answer is None
and the operator itself is run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
ShapeFunction = Callable[..., Any]


def quick_shape(func: Any, args: Any) -> Any:
    """The result of the call as an empty tensor on the meta device, or None if it is not a common case."""
    function = _SHAPE_FUNCTIONS.get(func.overloadpacket)
    return None if function is None else function(*args)


def _like_first(first: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(first)


def _contiguous(first: torch.Tensor, *_: Any) -> torch.Tensor | None:
    """Norms and softmax choose the layout of the result themselves if the input is not contiguous."""
    return torch.empty_like(first) if _row_major(first) else None


def _arithmetic(one: Any, other: Any, *_: Any) -> torch.Tensor | None:
    if not isinstance(one, torch.Tensor) or not one.dtype.is_floating_point:
        return None
    if isinstance(other, torch.Tensor):
        if other.dtype != one.dtype:
            return None
        if other.shape == one.shape:
            return torch.empty_like(one) if other.stride() == one.stride() else None
        if one.ndim != other.ndim or not (_row_major(one) and _row_major(other)):
            return None
        shape = [b if a == 1 else a for a, b in zip(one.shape, other.shape, strict=True)]
        fits = all(b in (1, size) for b, size in zip(other.shape, shape, strict=True))
        return one.new_empty(shape) if fits else None
    return torch.empty_like(one) if isinstance(other, (int, float)) else None


def _row_major(tensor: torch.Tensor) -> bool:
    """Strictly contiguous: `is_contiguous()` ignores the strides of axes of size one, but operators do not."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= size
    return True


def _conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: Any = None, stride: Any = (1,), padding: Any = (0,), dilation: Any = (1,),
    groups: int = 1,
) -> torch.Tensor | None:  # fmt: skip
    if x.ndim != 4 or weight.ndim != 4 or isinstance(padding, str) or not x.is_contiguous() or x.dtype != weight.dtype:
        return None
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups or 0 in x.shape or 0 in weight.shape:
        return None
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return None
    steps, pads, gaps = (list(v) * 2 if len(v) == 1 else v for v in (stride, padding, dilation))
    space = [(x.shape[2 + i] + 2 * pads[i] - gaps[i] * (weight.shape[2 + i] - 1) - 1) // steps[i] + 1 for i in (0, 1)]
    return x.new_empty((x.shape[0], weight.shape[0], *space)) if min(space) > 0 else None


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor | None:
    if weight.ndim != 2 or x.ndim < 2 or x.shape[-1] != weight.shape[1] or not x.is_contiguous() or x.dtype != weight.dtype:
        return None
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return None
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _adaptive_pool(x: torch.Tensor, size: Any) -> torch.Tensor | None:
    if len(size) != 2 or x.ndim != 4 or not x.is_contiguous() or 0 in x.shape or min(size) < 1:
        return None
    return x.new_empty((*x.shape[:2], *size))


def _recurrent(*args: Any) -> tuple[torch.Tensor, ...] | None:
    """The output and the last states. The operators themselves would unroll every step in Python."""
    if len(args) != 9:
        return None  # packed sequences
    x, states, bidirectional = args[0], args[1], args[7]
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return (x.new_empty(*x.shape[:-1], width), *[state.new_empty(state.shape) for state in states])


_SHAPE_FUNCTIONS: dict[Any, ShapeFunction] = {
    **dict.fromkeys((aten.batch_norm, aten.layer_norm, aten.group_norm, aten.instance_norm, aten.softmax), _contiguous),
    **dict.fromkeys((aten.relu, aten.gelu, aten.silu, aten.hardtanh, aten.hardswish, aten.hardsigmoid), _like_first),
    **dict.fromkeys((aten.sigmoid, aten.tanh, aten.relu6, aten.leaky_relu, aten.dropout), _like_first),
    **dict.fromkeys((aten.add, aten.sub, aten.mul, aten.div), _arithmetic),
    **dict.fromkeys((aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu), _recurrent),
    aten.conv2d: _conv2d,
    aten.linear: _linear,
    aten.adaptive_avg_pool2d: _adaptive_pool,
}
