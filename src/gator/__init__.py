"""Gator: make trained networks smaller and faster by learning which channels they can live without."""

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
from gator.files.save import load, save
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

__version__ = "0.1.0"

__all__ = [
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
