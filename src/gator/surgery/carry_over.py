"""What a network in graph form keeps of the user's class: attributes, methods, and modules that forward does not use."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import nn

from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import MODES
from gator.surgery.cut_network import CutNetwork, place_

_OWN = frozenset(vars(nn.Module())) | {"forward"}


def carry_over_(network: CutNetwork, model: nn.Module, graph: Hypergraph) -> None:
    """Give the graph form of a cut what the model has and the traced forward does not use.

    Attributes are copied unless they refer to modules or tensors. A module with weights or buffers in which nothing was
    recorded is kept whole.
    """
    for name, value in vars(model).items():
        if name not in _OWN and name not in vars(network) and not name.startswith("gator_") and _is_plain(value):
            network.carried[name] = copy.deepcopy(value)
    vars(network).update(network.carried)
    network.original_class = model.original_class if isinstance(model, CutNetwork) else type(model)
    used = used_modules(graph)
    for name, module in model.named_modules():
        parent = name.rpartition(".")[0]
        if name and name not in used and (not parent or parent in used) and module.state_dict():
            place_(network, name, copy.deepcopy(module))


def used_modules(graph: Hypergraph) -> set[str]:
    """The modules that something was recorded in, in either mode, and those that contain them."""
    names = {call.module for mode in MODES for call in graph.of(mode).program.calls}
    names |= {value.name.rpartition(".")[0] for mode in MODES for value in graph.of(mode).program.attributes()}
    return {".".join(name.split(".")[:length]) for name in names for length in range(name.count(".") + 2)}


class _Finder(pickle.Pickler):
    """Goes through everything that an object refers to, and notes whether a module or a tensor is among it."""

    found = False

    def persistent_id(self, obj: Any) -> str | None:
        if isinstance(obj, (nn.Module, torch.Tensor)):
            self.found = True
            return "found"
        return None


def _is_plain(value: Any) -> bool:
    """Whether a value refers to no module and no tensor, however deep: a loss that holds the model would run the uncut one."""
    finder = _Finder(io.BytesIO())
    try:
        finder.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError, GatorError):
        return False
    return not finder.found
