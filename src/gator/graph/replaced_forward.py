"""How to tell that a model runs with a mask or gates: then it cannot be traced or cut."""

from __future__ import annotations

from torch import nn


class ReplacedForward:
    """A callable that gator assigns to the forward of a module, for a mask or for gates."""


def has_replaced_forward(model: nn.Module) -> bool:
    """Whether the model, or a module in it, runs with a mask or gates."""
    return any(isinstance(module.__dict__.get("forward"), ReplacedForward) for module in model.modules())
