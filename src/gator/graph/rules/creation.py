"""Rules for operators that create tensors (zeros, arange, ...): any position can be removed, so all axes get new labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gator.graph.labels import Axes
from gator.graph.program import BatchInt
from gator.graph.rules.table import Scope, rule

aten = torch.ops.aten

# All positions hold the same (or random) values: after a cut a smaller tensor is created. The others are created at full size,
# and the kept positions are selected.
UNIFORM = (
    aten.zeros, aten.ones, aten.full, aten.empty, aten.rand, aten.randn, aten.new_zeros, aten.new_ones, aten.new_full,
    aten.new_empty,
)  # fmt: skip
PATTERNED = (aten.arange, aten.linspace, aten.eye, aten.scalar_tensor, aten.randperm, aten.bartlett_window, aten.hann_window)


@rule(*UNIFORM, *PATTERNED)
def _factory(scope: Scope) -> Sequence[Axes]:
    return [tuple(None if isinstance(size, BatchInt) else scope.fresh(size) for size in scope.out_shape())]
