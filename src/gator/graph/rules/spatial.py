"""Rules for spatial operators: pooling, upsampling and padding keep channels; unfold and pixel shuffle regroup them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from gator.graph.labels import Axes, Axis
from gator.graph.rules.table import Scope, rule

aten = torch.ops.aten

_SPATIAL = {
    1: (aten.max_pool1d, aten.max_pool1d_with_indices, aten.avg_pool1d, aten.adaptive_avg_pool1d, aten.adaptive_max_pool1d,
        aten.upsample_nearest1d, aten.upsample_linear1d, aten.reflection_pad1d, aten.replication_pad1d,
        aten._upsample_nearest_exact1d),
    2: (aten.max_pool2d, aten.max_pool2d_with_indices, aten.avg_pool2d, aten.adaptive_avg_pool2d, aten.adaptive_max_pool2d,
        aten.upsample_nearest2d, aten.upsample_bilinear2d, aten.upsample_bicubic2d, aten.reflection_pad2d,
        aten.replication_pad2d, aten._upsample_nearest_exact2d, aten._upsample_bilinear2d_aa,
        aten._upsample_bicubic2d_aa, aten.max_unpool2d),
    3: (aten.max_pool3d, aten.max_pool3d_with_indices, aten.avg_pool3d, aten.adaptive_avg_pool3d, aten.adaptive_max_pool3d,
        aten.upsample_nearest3d, aten.upsample_trilinear3d, aten.reflection_pad3d, aten.replication_pad3d,
        aten._upsample_nearest_exact3d),
}  # fmt: skip
_RANK = {packet: rank for rank, packets in _SPATIAL.items() for packet in packets}


@rule(*_RANK)
def _pooling_and_resizing(scope: Scope) -> Sequence[Axes]:
    """The last one, two or three axes are spatial and fixed; the others keep their labels."""
    (_, value), *rest = scope.call.tensors()
    axes = list(scope.analysis.axes[value])
    rank = _RANK[scope.call.packet]
    for axis in range(len(axes) - rank, len(axes)):
        scope.fix(axes[axis], "a spatial axis")
        axes[axis] = None
    for _, other in rest:
        for own, labels in zip(axes, scope.analysis.axes[other], strict=False):
            scope.tie(own, labels, "pooling indices of the same channels")
    return [tuple(axes) for _ in scope.call.outputs]


@rule(aten.pixel_shuffle)
def _pixel_shuffle(scope: Scope) -> Sequence[Axes]:
    axes, factor = scope.axes("self"), scope.get("upscale_factor") ** 2
    labels = axes[-3]
    if labels is not None:
        rows = np.arange(len(labels), dtype=np.int64) // factor
        labels = scope.tie_rows(labels, rows, len(labels) // factor, "channels that are shuffled into one block of pixels")
    return [_with_fixed_space(scope, axes, labels)]


@rule(aten.pixel_unshuffle)
def _pixel_unshuffle(scope: Scope) -> Sequence[Axes]:
    axes, factor = scope.axes("self"), scope.get("downscale_factor") ** 2
    labels = axes[-3]
    return [_with_fixed_space(scope, axes, None if labels is None else np.repeat(labels, factor))]


def _with_fixed_space(scope: Scope, axes: list[Axis], channels: Axis) -> Axes:
    for axis in axes[-2:]:
        scope.fix(axis, "a spatial axis")
    return (*axes[:-3], channels, None, None)


@rule(aten.im2col)
def _im2col(scope: Scope) -> Sequence[Axes]:
    """(B, C, H, W) to (B, C * kernel, positions): every channel becomes as many positions as the kernel has."""
    axes = scope.axes("self")
    for axis in axes[-2:]:
        scope.fix(axis, "a spatial axis")
    count = math.prod(scope.get("kernel_size"))
    labels = axes[-3]
    return [(*axes[:-3], None if labels is None else np.repeat(labels, count), None)]


@rule(aten.col2im)
def _col2im(scope: Scope) -> Sequence[Axes]:
    axes, count = scope.axes("self"), math.prod(scope.get("kernel_size"))
    scope.fix(axes[-1], "a spatial axis")
    labels = axes[-2]
    if labels is not None:
        rows = np.arange(len(labels), dtype=np.int64) // count
        labels = scope.tie_rows(labels, rows, len(labels) // count, "kernel positions of one channel")
    return [(*axes[:-2], labels, None, None)]


@rule(aten.grid_sampler, aten.grid_sampler_2d, aten.grid_sampler_3d)
def _grid_sampler(scope: Scope) -> Sequence[Axes]:
    axes, grid = scope.axes("input"), scope.axes("grid")
    for axis in (*axes[2:], *grid[1:]):
        scope.fix(axis, "a spatial axis")
    batch = scope.tie(axes[0], grid[0], "element by element")
    return [(batch, axes[1], *[None] * (len(axes) - 2))]


@rule(aten.constant_pad_nd)
def _constant_pad(scope: Scope) -> Sequence[Axes]:
    """Padding of a prunable axis can be removed again, so it gets new labels."""
    axes, pad = scope.axes("self"), scope.get("pad")
    for pair in range(len(pad) // 2):
        axis = len(axes) - 1 - pair
        before, after = int(pad[2 * pair]), int(pad[2 * pair + 1])
        labels = axes[axis]
        if labels is None or (before == 0 and after == 0):
            continue
        if before < 0 or after < 0:
            scope.fix(labels, "cropped by a negative pad")
            axes[axis] = None
            continue
        axes[axis] = np.concatenate([scope.fresh(before), labels, scope.fresh(after)])
    return [tuple(axes)]
