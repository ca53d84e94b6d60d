"""Fast output shapes equal those of the operator, strides included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gator.graph.output_shapes import quick_shape

aten = torch.ops.aten
small = st.integers(1, 9)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def check(func, *args) -> None:
    """The fast result equals that of the operator; it is None where the operator raises."""
    quick = quick_shape(func, args)
    try:
        real = func(*args)
    except RuntimeError:
        assert quick is None
        return
    if quick is not None:
        assert (quick.shape, quick.dtype) == (real.shape, real.dtype)
        # The stride of an axis of size one means nothing.
        assert [s for s, n in zip(quick.stride(), quick.shape, strict=True) if n > 1] == [
            s for s, n in zip(real.stride(), real.shape, strict=True) if n > 1
        ]


@settings(max_examples=100, deadline=None)
@given(small, small, small, st.integers(1, 3), small, st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), small)
def test_convolution(batch, groups, space, kernel, out, stride, padding, dilation, wide):
    for channels in (groups * out, groups * out + 1):
        x, weight = meta(batch, channels, space, wide), meta(groups * 2, out, kernel, kernel)
        check(aten.conv2d.default, x, weight, None, [stride], [padding, 0], [dilation] * 2, groups)
        check(aten.conv2d.default, x, weight, meta(groups * 2), [stride] * 2, [padding], [dilation], groups)
        check(aten.conv2d.default, x, weight, meta(groups * 2 + 1), [stride] * 2, [padding], [dilation], groups)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(small, st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_arithmetic_with_broadcasting(axes):
    one = meta(*(1 if left else size for size, left, _ in axes))
    other = meta(*(1 if right else size for size, _, right in axes))
    check(aten.mul.Tensor, one, other)
    check(aten.add.Tensor, one, other.double())
    check(aten.add.Tensor, one.transpose(0, -1), other)
    check(aten.sub.Tensor, one, meta(*(size + 1 for size, _, _ in axes)))


@settings(max_examples=100, deadline=None)
@given(small, small, small, st.booleans())
def test_linear_and_pools(rows, width, out, three):
    x = meta(2, rows, width) if three else meta(rows, width)
    check(aten.linear.default, x, meta(out, width), meta(out))
    check(aten.linear.default, x, meta(out, width + 1))
    check(aten.adaptive_avg_pool2d.default, meta(rows, width, 7, 5), [1, 1])
    check(aten.adaptive_avg_pool2d.default, meta(rows, width, 7, 5), [out, 3])


@pytest.mark.parametrize("func", [aten.relu.default, aten.silu.default, aten.sigmoid.default])
def test_pointwise(func):
    check(func, meta(2, 3, 4).transpose(1, 2))
    assert quick_shape(func, (meta(2, 3),)) is not None


def test_convolutions_of_every_day_are_answered():
    assert quick_shape(aten.conv2d.default, (meta(2, 3, 8, 8), meta(4, 3, 3, 3), None, [2, 2], [1, 1])).shape == (2, 4, 4, 4)
