"""A network as the commands take it: a run folder, a network file, or a file that `gator export` wrote.

`Opened` gives all of them the same face: scores for a batch of inputs, and what belongs to the network.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gator.errors import FileError, RecipeError, RunError
from gator.files.about import About
from gator.files.formats.by_name import BY_SUFFIX
from gator.files.formats.format import from_strings
from gator.files.save import read_about
from gator.training.evaluate import class_scores
from gator.training.folder import RunFolder
from gator.training.recipe import Recipe
from gator.training.recipe_file import recipe_from_text
from gator.zoo.load import load_named


@dataclass(frozen=True)
class Opened:
    """A network that can be run, where it came from, and what belongs to it."""

    path: Path  # of the network file
    about: About
    scores: Callable[[Tensor], Tensor]  # one row per example
    runtime: str  # what computes them, for people
    model: nn.Module | None = None  # None for an exported file
    example_inputs: Any = None
    run: RunFolder | None = None  # the run folder, if that was given

    @property
    def recipe(self) -> Recipe | None:
        """The recipe that made the network; None if it is not recorded, or has keys that this version does not know."""
        try:
            return recipe_from_text(self.about.recipe) if self.about.recipe else None
        except RecipeError:
            return None

    @property
    def table(self) -> str:
        """The result table of the run, if the run folder was given and the run is finished."""
        file = self.run.path / "result.txt" if self.run is not None else None
        return file.read_text(encoding="utf-8") if file is not None and file.is_file() else ""


def is_network(where: str) -> bool:
    """Whether this is a run folder or a file with a network, rather than the name of one."""
    path = Path(where)
    return path.suffix in (".safetensors", *BY_SUFFIX) or (path.is_dir() and RunFolder(path).recipe_file.is_file())


def opened(where: str, *, model: str = "", classes: int = 0, example_inputs: Any = None) -> Opened:
    """Open a run folder (its result, or the last finished round), a network file, or an exported file.

    model: the name of the original network, if the file does not name it, or names code of the caller's own (file.py:factory).
    From a run folder such code is run without being asked for, as `gator prune --resume` does.
    """
    path, run = Path(where), None
    if path.is_dir():
        run = RunFolder.of_run(path)
        path, model = network_of(run), model or run.recipe().model.name
    elif path.suffix in BY_SUFFIX:
        return _exported(path)
    if path.suffix != ".safetensors":
        raise FileError(f"{where} is neither a run folder nor a network file (.safetensors, {', '.join(BY_SUFFIX)})")
    network = load_named(path, name=model, classes=classes, example_inputs=example_inputs)
    about = read_about(path) or About(network=network.name, input=_shape(network.example_inputs))
    eager = network.model.eval()

    def scores(x: Tensor) -> Tensor:
        with torch.no_grad():
            return class_scores(eager(x)).float()

    return Opened(path, about, scores, "PyTorch", eager, network.example_inputs, run)


def network_of(run: RunFolder) -> Path:
    """The network file that is the result of a run, or, of a run that is not finished, of its last finished round."""
    if run.result.is_file():
        result = json.loads(run.result.read_text())
        return run.path / str(result["rounds"][result["chosen"]]["file"])
    number = 0
    while run.round_file(number).is_file():
        number += 1
    if not number:
        raise RunError(f"{run.path} has no pruned network yet; finish the run first: gator prune --resume {run.path}")
    return run.round_file(number - 1)


def _exported(path: Path) -> Opened:
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    chosen = BY_SUFFIX[path.suffix]
    chosen.check()
    run = chosen.open(path)
    return Opened(path, from_strings(chosen.about(path), path), lambda x: run(x)[0].float(), chosen.runtime)


def _shape(example: Any) -> tuple[int, ...]:
    return tuple(example.shape[1:]) if isinstance(example, Tensor) else ()
