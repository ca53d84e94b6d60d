"""Checkpoints: networks, gates, optimizer, random number generators and position of a run in one file, written atomically.

The last two checkpoints are kept. Tensors are stored as safetensors under a prefix, everything else as JSON in the same file;
nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from gator.errors import FileError, RunError
from gator.files.save import packed, unpacked, write_tensors
from gator.rank_zero import on_rank_zero

FORMAT = 1
_KEEP = 2


@dataclass(frozen=True)
class State:
    """Tensors by name, and everything else as what JSON can hold."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    content: dict[str, Any] = field(default_factory=dict)

    def under(self, prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) + 1 :]: t for name, t in self.tensors.items() if name.startswith(f"{prefix}/")}

    def with_part(self, prefix: str, part: State) -> State:
        tensors = {f"{prefix}/{name}": tensor for name, tensor in part.tensors.items()}
        return State({**self.tensors, **tensors}, {**self.content, prefix: part.content})

    def part(self, prefix: str) -> State:
        return State(self.under(prefix), self.content[prefix])


def write_checkpoint(folder: Path, step: int, state: State) -> Path:
    """Write a checkpoint, then delete all but the last two."""
    path = folder / f"step-{step:09d}.safetensors"
    metadata = {"gator-run": json.dumps({"format": FORMAT, **state.content})}
    # Two tensors must not share memory in the file; a copy also takes them off the device.
    write_tensors(path, {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.tensors.items()}, metadata)
    for old in checkpoints(folder)[:-_KEEP]:
        old.unlink()
    for left in folder.glob(".step-*"):  # temporary files of a process that was killed while writing
        with contextlib.suppress(FileNotFoundError):
            left.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def drop_latest(folder: Path) -> None:
    """Remove the newest checkpoint, if there is one."""
    for path in checkpoints(folder)[-1:]:
        path.unlink()


def read_latest(folder: Path) -> tuple[Path, State] | None:
    """The newest checkpoint that rank 0 can read, the same one on all ranks; None if the run has not written any yet."""
    own: list[tuple[Path, State]] = []

    def newest() -> Path | None:
        own.extend(_newest_readable(folder))
        return own[0][0] if own else None

    path = on_rank_zero(newest)
    if path is None:
        return None
    return own[0] if own else (path, _read(path))


def _newest_readable(folder: Path) -> list[tuple[Path, State]]:
    """The newest checkpoint that can be read, if there are any checkpoints."""
    found, problems = checkpoints(folder), []
    for path in reversed(found):
        try:
            return [(path, _read(path))]
        except FileError as error:
            problems.append(str(error))
    if found:
        raise RunError("no checkpoint of this run can be read:\n  " + "\n  ".join(problems))
    return []


def _read(path: Path) -> State:
    try:
        with safe_open(path, framework="pt") as file:
            content = json.loads((file.metadata() or {})["gator-run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise FileError(f"{path} is damaged or not a checkpoint: {error}") from error
    if content["format"] > FORMAT:
        raise FileError(f"{path} has format {content['format']}; this version reads up to {FORMAT}: upgrade gator")
    return State(tensors, content)


def network_state(network: nn.Module) -> State:
    return State(*packed(network))


def network_from(state: State, fresh: nn.Module, where: Path) -> nn.Module:
    """The network that was saved, built from a fresh instance of the original one."""
    return unpacked(state.tensors, state.content, fresh, where)


def optimizer_state(optimizer: Optimizer, network: nn.Module) -> State:
    """The optimizer's state by parameter names, and their order in the optimizer, which shrinking a network may change."""
    names = {parameter: name for name, parameter in network.named_parameters()}
    tensors: dict[str, Tensor] = {}
    order, numbers = [], {}
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        name = names[parameter]
        order.append(name)
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{key}"] = value
            elif value is not None:
                numbers[f"{name}/{key}"] = value
    return State(tensors, {"order": order, "numbers": numbers})


def parameters_in_order(state: State, network: nn.Module) -> list[nn.Parameter]:
    named = dict(network.named_parameters())
    return [named[name] for name in state.content["order"]]


def load_optimizer_(optimizer: Optimizer, state: State, network: nn.Module) -> None:
    named = dict(network.named_parameters())
    for key, value in [*state.tensors.items(), *state.content["numbers"].items()]:
        name, _, entry = key.rpartition("/")
        parameter = named[name]
        if isinstance(value, Tensor):
            value = value.clone() if value.ndim == 0 else value.to(parameter.device, copy=True)
        optimizer.state[parameter][entry] = value


def mapping_state(values: Mapping[str, Any]) -> State:
    """The State of a state_dict whose values are tensors or plain data."""
    return State(
        {key: value for key, value in values.items() if isinstance(value, Tensor)},
        {key: value for key, value in values.items() if not isinstance(value, Tensor)},
    )


def mapping_from(state: State) -> dict[str, Any]:
    return {**state.content, **state.tensors}


def random_state() -> dict[str, Any]:
    """The states of all random number generators of this process."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": [version, list(words), gauss],
        "numpy": [str(name), np.asarray(keys).tolist(), position, has_gauss, cached],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state.get("cuda") is not None:
        torch.cuda.set_rng_state(state["cuda"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
