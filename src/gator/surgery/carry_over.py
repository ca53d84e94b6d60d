"""What a network in graph form keeps of the user's class: attributes, methods, and modules that forward does not use."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn

from gator.graph.hypergraph import Hypergraph
from gator.graph.program import MODES
from gator.surgery.cut_network import CutNetwork, place_

_OWN = frozenset(vars(nn.Module())) | {"forward"}


def carry_over_(network: CutNetwork, model: nn.Module, graph: Hypergraph) -> None:
    """Give the graph form of a cut what the model has and the traced forward does not use.

    Attributes are copied unless they hold modules or tensors. A module with weights or buffers in which nothing was recorded
    is kept whole.
    """
    for name, value in vars(model).items():
        if name not in _OWN and name not in vars(network) and not name.startswith("gator_") and _is_plain(value):
            network.carried[name] = copy.copy(value)
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


def _is_plain(value: Any) -> bool:
    """Whether a value holds no module and no tensor."""
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, (list, tuple, set)):
        return all(_is_plain(item) for item in value)
    return not isinstance(value, (nn.Module, torch.Tensor, fx.Graph))
