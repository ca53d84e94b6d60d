"""`save`: one safetensors file with the weights of a network and, as JSON metadata, the plan of its cut and what belongs to it.

Loading runs no code from the file: the plan is applied to a model of the original architecture, then the weights are loaded.
The first mismatch is an error that names it, and the model passed in is not changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from gator.atomic_file import write_atomically
from gator.errors import FileError, GatorError
from gator.files.about import About
from gator.graph.json_fields import field
from gator.graph.tensor_identity import memory_of, storage_of, without_data
from gator.graph.trace import named_tensors
from gator.private_torch import buffers_of, parameters_of
from gator.surgery.apply import apply, plan
from gator.surgery.cut_plan import CutPlan
from gator.surgery.history import steps_of

# Formats 1 and 2 had a list of cuts, each with its graph. A key that older versions can do without, such as "about", does not
# change the format: they ignore it.
FORMAT = 3
_KEY = "gator"


def save(model: nn.Module, path: str | os.PathLike[str], *, about: About | None = None) -> None:
    """Write a network to one safetensors file: its weights and, if it was cut, its plan as JSON metadata.

    The file is written completely or not at all.

    Args:
        model: the network.
        path: the file to write.
        about: metadata of the network (a `gator.About`): its name, with which `gator.load` builds it, the preprocessing of its
            inputs, the names of its classes. `gator prune` fills it in.

    Raises:
        FileError: if the file cannot be written, or if the state_dict holds something other than tensors.

    Examples:
        >>> gator.save(small, "small.safetensors")
        >>> small = gator.load("small.safetensors", Network())
    """
    tensors, content = packed(model)
    if about is not None:
        content["about"] = about.to_data()
    write_tensors(Path(path), tensors, {_KEY: json.dumps(content), "format": "pt"})


def packed(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors of a network, and data for JSON: the names of tied tensors, and the plan of a cut network."""
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    seen: dict[Hashable, str] = {}
    storages: set[int] = set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            raise FileError(f"cannot save {name!r}: the state_dict holds a {type(tensor).__name__} there, not a tensor")
        first = seen.setdefault(memory_of(tensor) if tensor.numel() else name, name)
        if first != name:
            tied[name] = first
            continue
        # A view of another tensor is copied: safetensors does not accept tensors that share memory.
        is_view = storage_of(tensor) in storages
        storages.add(storage_of(tensor))
        tensors[name] = tensor.detach().contiguous().clone() if is_view else tensor.detach().contiguous()
    data = plan(model).to_data() if steps_of(model) else None
    return tensors, {"format": FORMAT, "class": type(model).__name__, "tied": tied, "plan": data}


def write_tensors(target: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write one safetensors file, completely or not at all."""
    try:
        write_atomically(target, lambda temporary: save_file(tensors, temporary, metadata=metadata))
    except SafetensorError as error:
        raise FileError(f"cannot write {target}: {error}") from error


def unpacked(tensors: dict[str, torch.Tensor], content: dict[str, Any], model: nn.Module, path: Any) -> nn.Module:
    """The network that was packed, made from `model`. Without a cut the weights are loaded into `model` itself."""
    network = model
    if content["plan"] is not None:
        try:
            network = apply(CutPlan.from_data(content["plan"]), model, verify=False)
        except FileError as error:
            raise FileError(f"{path}: {error}") from error
        except GatorError as error:
            raise FileError(f"{path}: the cut cannot be made on this {type(model).__name__}: {error}") from error
    _load_weights(network, tensors, content["tied"], path)
    return network


def is_cut(path: Path) -> bool:
    """Whether gator.save wrote this file, from a network that had been cut."""
    try:
        return read_packed(path)[1]["plan"] is not None
    except FileError:
        return False


def about_of(content: dict[str, Any]) -> About | None:
    """What belongs to the network of a file, from the JSON data that `read_packed` returned and checked."""
    return None if content["about"] is None else About.from_data(content["about"])


def read_about(path: Path) -> About | None:
    """What belongs to the network of a file, without reading its weights."""
    return about_of(_read(path, tensors=False)[1])


def read_packed(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the JSON data of a file, as `packed` returned them."""
    return _read(path, tensors=True)


def _read(path: Path, *, tensors: bool) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _KEY not in metadata:
                raise FileError(f"{path} is a safetensors file, but not one that gator.save wrote: it has no plan in it")
            content = _content(metadata[_KEY], path)
            return {name: file.get_tensor(name) for name in (file.keys() if tensors else ())}, content
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} cannot be read: {error}; it is truncated or not a safetensors file") from error


def _content(text: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
        found = field(content, "format", int)
        if found != FORMAT:
            hint = "upgrade gator" if found > FORMAT else "save the network again with this version"
            raise FileError(f"{path} has format {found}; this version of gator reads format {FORMAT}: {hint}")
        tied = field(content, "tied", dict)
        for name in tied:
            field(tied, name, str)
        if content.get("plan") is not None:
            field(content, "plan", dict)
        if content.get("about") is not None:
            About.from_data(content["about"])
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: the plan in it is damaged ({error})") from error
    return {"plan": None, "about": None, **content}


def _load_weights(network: nn.Module, tensors: dict[str, torch.Tensor], tied: dict[str, str], path: Any) -> None:
    """Copy the tensors of a file into a network. Raises FileError for names or shapes that do not match."""
    state = network.state_dict()
    given = {**tensors, **{name: tensors[other] for name, other in tied.items() if other in tensors}}
    for name, tensor in state.items():
        if name not in given:
            raise FileError(f"{path} lacks tensor {name!r}, which the network needs")
        if given[name].shape != tensor.shape:
            raise FileError(
                f"{path}: tensor {name!r} has shape {tuple(given[name].shape)}, the network has {tuple(tensor.shape)}"
            )
    for name in given:
        if name not in state:
            raise FileError(f"{path} has tensor {name!r}, which the network does not have")
    current = named_tensors(network)
    placed: dict[int, torch.Tensor] = {}  # tied tensors stay tied
    with torch.no_grad():
        for name in state:
            if without_data(current[name]):
                _place(network, name, placed.setdefault(id(current[name]), _like(current[name], given[name])))
            else:
                current[name].data = given[name].to(current[name].device, copy=True)
    for name, tensor in named_tensors(network).items():
        if without_data(tensor):
            raise FileError(
                f"{path} does not hold {name!r}, which has no data on the meta device\n"
                f"  Pass an instance of {type(network).__name__.removeprefix('Cut')} on the CPU."
            )


def _like(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """The data as a parameter if the tensor on the meta device is one, otherwise as a buffer."""
    return nn.Parameter(data.clone(), requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data.clone()


def _place(network: nn.Module, name: str, tensor: torch.Tensor) -> None:
    owner, _, attribute = name.rpartition(".")
    module = network.get_submodule(owner)
    if isinstance(tensor, nn.Parameter):
        parameters_of(module)[attribute] = tensor
    else:
        buffers_of(module)[attribute] = tensor
