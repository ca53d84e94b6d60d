"""Gator: make trained networks smaller and faster by learning which channels they can live without.

The public names are imported when they are first used: `gator --version` and `gator --help` must not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gator.cost.flops import Flops
    from gator.cost.latency.latency import Latency
    from gator.cost.measure import Footprint, measure, predict_macs
    from gator.cost.memory import Memory
    from gator.cost.weighted import WeightedCost
    from gator.errors import (
        BudgetError,
        CutError,
        DataError,
        FileError,
        GatorError,
        KeptError,
        MissingExtraError,
        ModelNameError,
        RecipeError,
        RunError,
        TraceError,
    )
    from gator.files.about import About
    from gator.files.export import export
    from gator.files.preprocessing import Preprocessing
    from gator.files.save import save
    from gator.gates.calibrate import Calibration, calibrate_gamma
    from gator.gates.one_shot import one_shot
    from gator.gates.pruner import Pruner
    from gator.graph.hypergraph import Edge, Hypergraph, Member, SavedGraph
    from gator.surgery.apply import apply, plan
    from gator.surgery.cut import cut
    from gator.surgery.cut_plan import CutPlan
    from gator.surgery.inplace import cut_
    from gator.surgery.keep_class import trace
    from gator.surgery.masked import masked
    from gator.training.recipe import Recipe
    from gator.training.recipe_file import read_recipe
    from gator.training.report import Result
    from gator.training.run import resume, run
    from gator.zoo.load import load

__version__ = "0.1.0"

__all__ = [
    "About",
    "BudgetError",
    "Calibration",
    "CutError",
    "CutPlan",
    "DataError",
    "Edge",
    "FileError",
    "Flops",
    "Footprint",
    "GatorError",
    "Hypergraph",
    "KeptError",
    "Latency",
    "Member",
    "Memory",
    "MissingExtraError",
    "ModelNameError",
    "Preprocessing",
    "Pruner",
    "Recipe",
    "RecipeError",
    "Result",
    "RunError",
    "SavedGraph",
    "TraceError",
    "WeightedCost",
    "apply",
    "calibrate_gamma",
    "cut",
    "cut_",
    "export",
    "load",
    "masked",
    "measure",
    "one_shot",
    "plan",
    "predict_macs",
    "read_recipe",
    "resume",
    "run",
    "save",
    "trace",
]

# The module of every public name, as in the imports above, which only type checkers follow.
_HOMES = {
    "gator.cost.flops": "Flops",
    "gator.cost.latency.latency": "Latency",
    "gator.cost.measure": "Footprint measure predict_macs",
    "gator.cost.memory": "Memory",
    "gator.cost.weighted": "WeightedCost",
    "gator.errors": "BudgetError CutError DataError FileError GatorError KeptError MissingExtraError ModelNameError "
    "RecipeError RunError TraceError",
    "gator.files.about": "About",
    "gator.files.export": "export",
    "gator.files.preprocessing": "Preprocessing",
    "gator.files.save": "save",
    "gator.gates.calibrate": "Calibration calibrate_gamma",
    "gator.gates.one_shot": "one_shot",
    "gator.gates.pruner": "Pruner",
    "gator.graph.hypergraph": "Edge Hypergraph Member SavedGraph",
    "gator.surgery.apply": "apply plan",
    "gator.surgery.cut": "cut",
    "gator.surgery.cut_plan": "CutPlan",
    "gator.surgery.inplace": "cut_",
    "gator.surgery.keep_class": "trace",
    "gator.surgery.masked": "masked",
    "gator.training.recipe": "Recipe",
    "gator.training.recipe_file": "read_recipe",
    "gator.training.report": "Result",
    "gator.training.run": "resume run",
    "gator.zoo.load": "load",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_PACKAGES = ("cost", "files", "gates", "graph", "surgery", "training", "zoo")


def __getattr__(name: str) -> Any:
    """A public name or a package of the library, imported now (PEP 562)."""
    if name in _HOME_OF:
        found = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name in _PACKAGES:
        found = importlib.import_module(f"gator.{name}")
    else:
        raise AttributeError(f"module 'gator' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
