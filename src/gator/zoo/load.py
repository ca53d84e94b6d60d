"""`load`: a network from the file that `gator.save` or `gator prune` wrote, built by the name in the file where it has one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gator.errors import FileError
from gator.files.about import About
from gator.files.save import about_of, read_packed, unpacked
from gator.zoo.models import Network, build
from gator.zoo.user_file import is_file


def load(path: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Load a network from a file.

    Args:
        path: a file that `gator.save` or `gator prune` wrote.
        model: a fresh instance of the original architecture; it is not changed. Not needed if the file names a network of
            `gator.zoo`, which all files of `gator prune` do. A network that is made by code of your own (file.py:factory) has
            to be passed: reading a file runs no code that the file names.

    Returns:
        The network.

    Raises:
        FileError: for a file that is damaged, of another format, of another architecture, or, if `model` is given, without a
            cut.

    Examples:
        >>> gator.save(small, "small.safetensors")
        >>> small = gator.load("small.safetensors", Network())
    """
    if model is None:
        return load_named(Path(path)).model
    if not isinstance(model, nn.Module):
        raise FileError(f"load needs an instance of the original network, not {model!r}; pass Network(), not Network")
    tensors, content = read_packed(Path(path))
    if content["plan"] is None:
        raise FileError(f"{path} holds no cut; load its tensors with safetensors into the model itself")
    return unpacked(tensors, content, model, path)


def load_named(path: Path, *, name: str = "", classes: int = 0, example_inputs: Any = None) -> Network:
    """A network built by its name, with the name and example inputs.

    name: instead of the name in the file; the only way to name code of one's own (file.py:factory).
    classes: instead of the number in the file.
    example_inputs: instead of those that the file or the name implies.
    """
    tensors, content = read_packed(path)
    about = about_of(content) or About()
    if not name:
        name = about.network
        if not name:
            raise FileError(
                f"{path} does not name its network\n"
                "  Pass an instance: gator.load(path, Network()); on the command line its name: --model cifar:resnet56."
            )
        if is_file(name):
            raise FileError(
                f"{path}: its network is made by {name}, and a file does not decide which code runs\n"
                f"  Pass an instance: gator.load(path, model); on the command line: --model {name}."
            )
    if example_inputs is None and about.input:
        example_inputs = torch.zeros(1, *about.input)
    with torch.random.fork_rng():
        made = build(name, example_inputs=example_inputs, classes=classes or about.classes)
    return Network(name, unpacked(tensors, content, made.model, path), made.example_inputs)
