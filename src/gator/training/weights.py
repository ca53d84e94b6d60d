"""Initial weights from a file: safetensors, a network that gator.save wrote, or a pickled state_dict of tensors."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gator.errors import FileError
from gator.files.save import is_cut
from gator.training.recipe import Recipe
from gator.zoo.load import load
from gator.zoo.user_file import is_file

_STATE_DICT_KEYS = ("state_dict", "model", "model_state_dict", "net")


def missing_weights(recipe: Recipe) -> str:
    """A warning if a recipe neither names weights nor trains the network before it is pruned; else empty."""
    if recipe.model.weights or recipe.train.epochs:
        return ""
    name = recipe.model.name
    found = f"the network has the weights that {name} gives it" if is_file(name) else "the network has random weights"
    return (
        f"warning: {found}, because model.weights is empty and train.epochs is 0\n"
        '  Unless that is meant, set model.weights to a file or to "pretrained", or train.epochs.'
    )


def with_weights(model: nn.Module, path: Path) -> nn.Module:
    """Load the weights of a file into `model` and return it; if the file holds a cut network, return that network."""
    if not path.is_file():
        raise FileError(f"model.weights: there is no file {path}; give the path of a checkpoint, or remove the key")
    if path.suffix == ".safetensors":
        if is_cut(path):
            return load(path, model)
        try:
            tensors: Mapping[str, Any] = load_file(path)
        except (SafetensorError, OSError) as error:
            raise FileError(f"{path} cannot be read: {error}; it is truncated or not a safetensors file") from error
    else:
        tensors = _state_dict(path)
    _fill(model, tensors, path)
    return model


def _state_dict(path: Path) -> Mapping[str, Any]:
    try:
        # Most checkpoints are pickles; with weights_only nothing but tensors is read, and no code runs.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise FileError(f"{path} is not a state_dict of tensors: {error}; save the state_dict, not the module") from error
    for key in _STATE_DICT_KEYS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping):
        raise FileError(f"{path} holds a {type(found).__name__}; expected a state_dict")
    return found


def _fill(model: nn.Module, tensors: Mapping[str, Any], path: Path) -> None:
    given = {name.removeprefix("module."): value for name, value in tensors.items() if isinstance(value, Tensor)}
    state = model.state_dict()
    for name, tensor in state.items():
        if name not in given and not name.endswith("num_batches_tracked"):
            raise FileError(f"{path} lacks {name!r}, which the network needs")
        if name in given and given[name].shape != tensor.shape:
            raise FileError(f"{path}: {name!r} has shape {tuple(given[name].shape)}, the network has {tuple(tensor.shape)}")
    surplus = [name for name in given if name not in state]
    if surplus:
        raise FileError(f"{path} has {surplus[0]!r}, which the network does not have")
    model.load_state_dict(given, strict=False)
