"""Bake parametrizations: replace weights that forward computes (weight_norm, spectral_norm, ...) by plain parameters.

This is done before recording. The computed weight has channels like any other; the tensors it is computed from are not pruned.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from gator.private_torch import forward_pre_hooks_of


def needs_baking(model: nn.Module) -> bool:
    return any(parametrize.is_parametrized(module) or _norm_hooks(module) for module in model.modules())


def baked(model: nn.Module) -> nn.Module:
    """A copy of the model with plain weights; the model itself if it has no parametrizations."""
    return baked_copy(model) if needs_baking(model) else model


def baked_copy(model: nn.Module) -> nn.Module:
    return bake_(copy.deepcopy(model, copied_results(model)))


def copied_results(model: nn.Module) -> dict[int, Any]:
    """A memo for deepcopy, which refuses non-leaf tensors: hooks store their results as plain attributes of a layer."""
    stored = [value for module in model.modules() for value in module.__dict__.values() if isinstance(value, torch.Tensor)]
    return {id(tensor): tensor.detach().clone() for tensor in stored if not tensor.is_leaf}


def bake_(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if parametrize.is_parametrized(module):
            _bake_parametrizations_(module)
        for hook in _norm_hooks(module):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(module, hook.name)
            else:
                remove_spectral_norm(module, hook.name)
    return model


def _bake_parametrizations_(module: nn.Module) -> None:
    """Like torch's remove_parametrizations, which would also remove the properties of the class, shared by all copies."""
    lists: Any = module.parametrizations
    results = {name: getattr(module, name).detach().clone() for name in lists}
    trainable = {name: any(p.requires_grad for p in lists[name].parameters()) for name in results}
    del module.parametrizations
    module.__class__ = type(module).__mro__[1]
    for name, data in results.items():
        module.register_parameter(name, nn.Parameter(data, requires_grad=trainable[name]))


def _norm_hooks(module: nn.Module) -> list[WeightNorm | SpectralNorm]:
    return [hook for hook in forward_pre_hooks_of(module).values() if isinstance(hook, (WeightNorm, SpectralNorm))]
