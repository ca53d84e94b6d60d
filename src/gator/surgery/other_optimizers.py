"""Optimizers that were not passed to `cut_`: their state still has the old shapes, and torch's own error does not say why.

Every optimizer is looked at once, before its first step after a cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from gator.errors import CutError
from gator.private_torch import pytree

_cut = WeakTensorKeyDictionary()  # the parameters; a WeakSet would compare tensors element by element
_checked: WeakSet[Optimizer] = WeakSet()
_registered: list[Any] = []


def watch_optimizers(parameters: Iterable[nn.Parameter]) -> None:
    """Check optimizers of these parameters before their next step."""
    _cut.update(dict.fromkeys(parameters))
    _checked.clear()
    if not _registered:
        _registered.append(register_optimizer_step_pre_hook(_check))


def _check(optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG001
    if optimizer in _checked:
        return
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if parameter not in _cut:
            continue
        for state in pytree.tree_leaves(optimizer.state.get(parameter, {})):
            if isinstance(state, torch.Tensor) and state.ndim == parameter.ndim > 0 and state.shape != parameter.shape:
                raise CutError(
                    f"this {type(optimizer).__name__} was made before the network was cut: it keeps state of shape "
                    f"{tuple(state.shape)} for a parameter of shape {tuple(parameter.shape)}\n"
                    "  Pass it along (pruner.shrink_(optimizer), gator.cut_(..., optimizer=optimizer)), or make a new one."
                )
    _checked.add(optimizer)
