"""Weight normalisations computed in forward (weight_norm, spectral_norm) are turned into plain weights before recording.

Their result is a weight like any other; their ingredients have no channels of their own to prune.
"""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def needs_baking(model: nn.Module) -> bool:
    return any(parametrize.is_parametrized(module) or _hooks(module) for module in model.modules())


def baked(model: nn.Module) -> nn.Module:
    """The model itself, or a copy with plain weights where something had to be baked."""
    return bake_(copy.deepcopy(model)) if needs_baking(model) else model


def bake_(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, str(name), leave_parametrized=True)
        for hook in _hooks(module):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(module, hook.name)
            else:
                remove_spectral_norm(module, hook.name)
    return model


def _hooks(module: nn.Module) -> list[WeightNorm | SpectralNorm]:
    return [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, (WeightNorm, SpectralNorm))]
