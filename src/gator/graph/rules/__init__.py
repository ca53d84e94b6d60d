"""What every operator does to labels: one table, keyed by the operator itself."""

from gator.graph.rules import (
    contraction,
    creation,
    fourier,
    indexing,
    movement,
    normalization,
    pointwise,
    recurrent,
    reduction,
    spatial,
)
from gator.graph.rules.table import Scope, find, has_rule

__all__ = [
    "Scope",
    "contraction",
    "creation",
    "find",
    "fourier",
    "has_rule",
    "indexing",
    "movement",
    "normalization",
    "pointwise",
    "recurrent",
    "reduction",
    "spatial",
]
