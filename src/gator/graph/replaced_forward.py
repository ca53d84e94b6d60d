"""How to tell that a model runs with a mask or gates: then it cannot be traced or cut."""

from __future__ import annotations

from torch import nn

from gator.private_torch import forward_pre_hooks_of


class ReplacedForward:
    """A callable that gator assigns to `model.forward`, or a hook that it puts on the model, for a mask or for gates."""


def has_replaced_forward(model: nn.Module) -> bool:
    """Whether the model runs with a mask or gates."""
    hooks = forward_pre_hooks_of(model).values()
    return any(isinstance(found, ReplacedForward) for found in (model.__dict__.get("forward"), *hooks))
