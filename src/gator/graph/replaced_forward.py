"""`ReplacedForward`: the base class of the callables that gator assigns to `model.forward`, for a mask or for gates.

A model with a replaced forward does not run its own code, so it cannot be traced or cut until its own forward is restored.
"""

from __future__ import annotations

from torch import nn


class ReplacedForward:
    """A callable that gator assigns to `model.forward`."""


def has_replaced_forward(model: nn.Module) -> bool:
    """Whether the model runs with a mask or gates instead of its own forward."""
    return isinstance(model.__dict__.get("forward"), ReplacedForward)
