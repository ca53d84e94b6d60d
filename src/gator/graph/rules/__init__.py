"""What every operator does to labels: one table, keyed by the operator itself."""

from gator.graph.rules import contract, factory, mix, move, normalise, pick, pointwise, recurrent, space
from gator.graph.rules.table import Scope, find, has_rule

__all__ = [
    "Scope",
    "contract",
    "factory",
    "find",
    "has_rule",
    "mix",
    "move",
    "normalise",
    "pick",
    "pointwise",
    "recurrent",
    "space",
]
