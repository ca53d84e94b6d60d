"""Rules for Fourier transforms and complex numbers as pairs: the transformed axes are fixed, the others keep their labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gator.graph.labels import Axes
from gator.graph.rules.table import Scope, rule

aten = torch.ops.aten


@rule(aten._fft_r2c, aten._fft_c2r, aten._fft_c2c)
def _transform(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    for dim in scope.get("dim"):
        axis = scope.dim(dim, len(axes))
        scope.fix(axes[axis], "an axis of a Fourier transform")
        axes[axis] = None
    return [tuple(axes)]


@rule(aten.view_as_real)
def _as_pairs(scope: Scope) -> Sequence[Axes]:
    return [(*scope.axes("self"), None)]


@rule(aten.view_as_complex)
def _from_pairs(scope: Scope) -> Sequence[Axes]:
    axes = scope.axes("self")
    scope.fix(axes[-1], "the real and the imaginary part")
    return [tuple(axes[:-1])]
