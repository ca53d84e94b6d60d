"""Averages of weights (EMA, SWA) that follow a network when its closed channels are removed."""

from __future__ import annotations

import torch
from torch import nn

from gator.errors import GatorError
from gator.gates.attach import take_gates_off


def averaged_network(average: nn.Module, model: nn.Module) -> nn.Module:
    """The copy of `model` whose weights are averages: `average` itself, or what it holds as `module` (torch and timm do).

    Classes are not compared: every cut in graph form has a class of its own.
    """
    shapes = _shapes(model)
    found = average if _shapes(average) == shapes else dict(average.named_children()).get("module")
    if found is None or found is model or _shapes(found) != shapes:
        raise GatorError(
            f"a {type(average).__name__} is no average of this {type(model).__name__}: it holds no copy of it\n"
            "  Pass torch.optim.swa_utils.AveragedModel(model), timm's ModelEmaV3(model), or a deep copy of the model."
        )
    take_gates_off(found)  # a copy that was made with gates on has gates of its own
    return found


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}
