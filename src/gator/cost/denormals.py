"""Denormal numbers: too small for a processor's fast path, they can make a network many times slower on a CPU.

They come from weight decay on pruned channels and from norms folded into weights. `cut` sets them to zero; here they are
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gator.graph.inputs import as_call
from gator.graph.temporary_mode import modes_set


@dataclass(frozen=True)
class Denormals:
    """How many weights and activations of a network are denormal. False if none are."""

    weights: int
    activations: int

    def __bool__(self) -> bool:
        return self.weights + self.activations > 0

    def __str__(self) -> str:
        return (
            f"{self.weights:,} weights and {self.activations:,} activations are denormal numbers, which are slow on a CPU: "
            "gator.cut sets such weights to zero, torch.set_flush_denormal(True) both"
        )


def denormals_of(model: nn.Module, example_inputs: Any) -> Denormals:
    """The denormal weights of a network, and those in the outputs of its layers in one forward pass in eval mode."""
    args, kwargs = as_call(example_inputs)
    activations = 0

    def count(_: nn.Module, __: Any, output: Any) -> None:
        nonlocal activations
        activations += _count(output) if isinstance(output, Tensor) else 0

    hooks = [module.register_forward_hook(count) for module in model.modules() if not any(True for _ in module.children())]
    try:
        with modes_set(model, False), torch.inference_mode():
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return Denormals(sum(_count(tensor) for tensor in tensors.values()), activations)


def _count(tensor: Tensor) -> int:
    if not tensor.dtype.is_floating_point:
        return 0
    return int(((tensor != 0) & (tensor.abs() < torch.finfo(tensor.dtype).tiny)).sum())
