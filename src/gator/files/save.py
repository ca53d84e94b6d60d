"""`save` and `load`: one safetensors file with the weights and, as JSON metadata, the cuts that lead to them.

Loading runs no code from the file: the original architecture is traced and cut again as the file says, then the weights
are put in. What does not fit is an error that names the first mismatch, and the model passed in is untouched.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from gator.atomic_file import write_atomically
from gator.errors import FileError, GatorError
from gator.graph.hypergraph import SavedGraph
from gator.graph.trace import check_same, named_tensors, trace_inputs
from gator.surgery.cut import rebuild
from gator.surgery.history import Step, steps_of

FORMAT = 2  # 1 had graphs as plain JSON
_KEY = "gator"


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a (cut) network to one file. The file appears whole or not at all."""
    tensors, content = packed(model)
    write_whole(Path(path), tensors, {_KEY: json.dumps(content), "format": "pt"})


def packed(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors of a network, and what JSON has to say about them and about the cuts they have been through."""
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            raise FileError(f"cannot save {name!r}: the state_dict holds a {type(tensor).__name__} there, not a tensor")
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else name
        if key in seen:
            tied[name] = seen[key]
        else:
            seen[key] = name
            tensors[name] = tensor.detach().contiguous()
    steps = [_dump(step) for step in steps_of(model)]
    return tensors, {"format": FORMAT, "class": type(model).__name__, "tied": tied, "steps": steps}


def write_whole(target: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write one safetensors file, completely or not at all."""
    try:
        write_atomically(target, lambda temporary: save_file(tensors, temporary, metadata=metadata))
    except SafetensorError as error:
        raise FileError(f"cannot write {target}: {error}") from error


def load(path: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """The network of a file, made from `model`, a fresh instance of the original architecture (which stays as it is)."""
    if not isinstance(model, nn.Module):
        raise FileError(f"load needs an instance of the original network, not {model!r}; pass Network(), not Network")
    tensors, content = read_packed(Path(path))
    if not content["steps"]:
        raise FileError(f"{path} holds no cut; load its tensors with safetensors into the model itself")
    return unpacked(tensors, content, model, path)


def unpacked(tensors: dict[str, torch.Tensor], content: dict[str, Any], model: nn.Module, path: Any) -> nn.Module:
    """The network that was packed, made from `model`; without cuts it is `model` itself that gets the weights."""
    network = model
    for number, step in enumerate(content["steps"]):
        try:
            network = _apply(network, _restore(step))
        except FileError:
            raise
        except GatorError as error:
            raise FileError(f"{path}: cut {number + 1} cannot be made on this {type(model).__name__}: {error}") from error
    _fill(network, tensors, content["tied"], path)
    return network


def is_cut(path: Path) -> bool:
    """Whether gator.save wrote this file, and of a network that had been cut."""
    try:
        return bool(read_packed(path)[1]["steps"])
    except FileError:
        return False


def read_packed(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors of a file and its plan, as `packed` gave them."""
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _KEY not in metadata:
                raise FileError(f"{path} is a safetensors file, but not one that gator.save wrote: it has no plan in it")
            content = json.loads(metadata[_KEY])
            if content["format"] > FORMAT:
                raise FileError(f"{path} has format {content['format']}; this version reads up to {FORMAT}: upgrade gator")
            if not isinstance(content["steps"], list) or not isinstance(content["tied"], dict):
                raise FileError(f"{path}: the plan in it is damaged")
            return {name: file.get_tensor(name) for name in file.keys()}, content  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} cannot be read: {error}; it is truncated or not a safetensors file") from error
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: the plan in it is damaged ({type(error).__name__}: {error})") from error


def _dump(step: Step) -> dict[str, Any]:
    kept = {name: list(units) for name, units in step.kept.items()}
    # A run that shrinks as it goes has many steps, and the header of a file holds 100 MB at most.
    graph = base64.b64encode(zlib.compress(step.graph.to_json().encode())).decode()
    return {"graph": graph, "kept": kept, "form": step.form, "folded": step.folded}


def _restore(data: Any) -> Step:
    try:
        kept = {name: tuple(units) for name, units in data["kept"].items()}
        folded = {key: (str(name), tuple(shape)) for key, (name, shape) in data["folded"].items()}
        graph = data["graph"]
        if not graph.startswith("{"):
            graph = zlib.decompress(base64.b64decode(graph)).decode()
        return Step(SavedGraph.from_json(graph), kept, data["form"], folded)
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, GatorError) as error:
        raise FileError(f"the plan in the file is damaged: {error}") from error


def _apply(model: nn.Module, step: Step) -> nn.Module:
    graph = trace_inputs(model, step.graph.inputs, fixed=step.graph.fixed, heads=step.graph.heads)
    check_same(step.graph.edges, graph.edges, FileError)
    return rebuild(model, graph, step)


def _fill(network: nn.Module, tensors: dict[str, torch.Tensor], tied: dict[str, str], path: Any) -> None:
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
    held = named_tensors(network)
    with torch.no_grad():
        for name in state:
            held[name].data = given[name].to(held[name].device, copy=True)
