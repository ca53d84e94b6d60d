"""Gator: make trained networks smaller and faster by learning which channels they can live without."""

from gator.cost.measure import Footprint, measure, predict_macs
from gator.errors import CutError, FileError, GatorError, KeptError, MissingExtraError, ModelNameError, TraceError
from gator.files.save import load, save
from gator.graph.hypergraph import Edge, Hypergraph, Member
from gator.graph.trace import trace
from gator.surgery.cut import cut
from gator.surgery.inplace import cut_
from gator.surgery.masked import masked

__version__ = "0.1.0"

__all__ = [
    "CutError",
    "Edge",
    "FileError",
    "Footprint",
    "GatorError",
    "Hypergraph",
    "KeptError",
    "Member",
    "MissingExtraError",
    "ModelNameError",
    "TraceError",
    "cut",
    "cut_",
    "load",
    "masked",
    "measure",
    "predict_macs",
    "save",
    "trace",
]
