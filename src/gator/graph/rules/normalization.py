"""Rules for normalisation layers: those with statistics per channel only tie labels; the others also read along channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gator.graph.labels import Axes
from gator.graph.rules.table import ReadKind, Scope, rule

aten = torch.ops.aten


@rule(aten.batch_norm, aten.instance_norm)
def _per_channel(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("input")
    channel = 1 if len(axes) > 1 else 0
    for name in ("weight", "bias", "running_mean", "running_var"):
        if scope.has(name):
            axes[channel] = scope.tie(axes[channel], scope.axes(name)[0], "one value per channel")
    if scope.get("training", scope.get("use_input_stats")):
        # Weight standardisation uses batch norm to normalise a weight over its input channels.
        for axis in range(len(axes)):
            if axis != channel:
                scope.read("input", axis, "batch_norm")
    return [tuple(axes)]


@rule(aten.layer_norm, aten.rms_norm)
def _over_axes(scope: Scope) -> Sequence[Axes]:
    """Normalised over the last axes, with a scale and a shift for every position."""
    axes = scope.axes("input")
    count = len(scope.get("normalized_shape"))
    start = len(axes) - count
    for name in ("weight", "bias"):
        if scope.has(name):
            for offset, labels in enumerate(scope.axes(name)):
                axes[start + offset] = scope.tie(axes[start + offset], labels, "one value per channel")
    kind: ReadKind = "layer_norm" if scope.call.packet is aten.layer_norm else "rms_norm"
    for axis in range(start, len(axes)):
        scope.read("input", axis, kind)
    return [tuple(axes)]


@rule(aten.group_norm)
def _group_norm(scope: Scope) -> Sequence[Axes]:
    """Either the same positions of every group are kept, or whole groups: whichever leaves more units."""
    axes, shape, groups = scope.axes("input"), scope.shape("input"), scope.get("num_groups")
    for name in ("weight", "bias"):
        if scope.has(name):
            axes[1] = scope.tie(axes[1], scope.axes(name)[0], "one value per channel")
    labels = axes[1]
    for axis in axes[2:]:
        scope.fix(axis, "a spatial axis that is normalised over")
    if labels is None:
        return [tuple(axes)]
    per_group = int(shape[1]) // groups
    rows = np.arange(int(shape[1]), dtype=np.int64)
    space = scope.analysis.space
    options = {"groups": space.units(labels, rows // per_group), "positions": space.units(labels, rows % per_group)}
    if per_group == 1:
        options.pop("positions")
    elif groups == 1:
        options.pop("groups")
    if scope.choose(options) == "groups":
        scope.set_choice_labels(scope.tie_rows(labels, rows // per_group, groups, "whole groups of a group norm"))
    else:
        scope.set_choice_labels(scope.tie_rows(labels, rows % per_group, per_group, "same position in every group"))
        scope.read("input", 1, "group_norm")
    return [tuple(axes)]
