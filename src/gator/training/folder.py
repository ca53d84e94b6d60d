"""The folder of a run, which is enough to repeat or resume the run.

It holds recipe.toml, environment.json, about.json (preprocessing, names of the classes), metrics.jsonl (a line per epoch),
networks.jsonl (a line per finished network), graph.json (the outline of the dense network), events (TensorBoard), checkpoints,
dense.safetensors, one round-N.safetensors per round, result.json, result.txt and run.lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from gator.atomic_file import write_atomically
from gator.cost.latency.runtimes.device_name import processor
from gator.errors import FileError, RunError
from gator.files.about import About
from gator.graph.outline import Outline
from gator.training.changes import may_change
from gator.training.recipe import Recipe
from gator.training.recipe_file import as_mapping, differing_keys, read_recipe, recipe_text, value_at
from gator.training.report import NetworkRecord
from gator.training.run_lock import LOCK
from gator.training.watch import Moment

_CHANGED = "# resumed with"  # begins the comment on a change
_PACKAGES = ("torch-gator", "torch", "numpy", "safetensors", "torchvision", "timm", "transformers", "onnxruntime")


class RunFolder:
    """The paths in a run folder, and the files that are appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.networks = path / "networks.jsonl"
        self.outline = path / "graph.json"
        self.environment = path / "environment.json"
        self.recipe_file = path / "recipe.toml"
        self.dense = path / "dense.safetensors"
        self.result = path / "result.json"
        self._events: Any = None

    @classmethod
    def new(cls, path: Path, recipe: Recipe, environment: dict[str, Any], *, overwrite: bool = False) -> RunFolder:
        """Create the folder of a new run.

        It must not exist yet, or hold no more than a killed `new` has left there, or with `overwrite` be that of another run.
        """
        if overwrite:
            cls.remove(path)
        elif path.exists() and not (path.is_dir() and all(_is_unused(entry) for entry in path.iterdir())):
            raise RunError(
                f"{path} exists already; choose another folder, or resume its run: gator prune --resume {path}\n"
                "  A run folder is replaced by a new run with --overwrite."
            )
        folder = cls(path)
        try:
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            folder.environment.write_text(json.dumps(environment, indent=2) + "\n")
            folder.metrics.touch()
            _write(folder.recipe_file, recipe_text(recipe))  # last: it marks the folder of a run
        except (OSError, FileError) as error:
            raise RunError(f"cannot create the run folder {path}: {error}") from error
        return folder

    @classmethod
    def remove(cls, path: Path) -> None:
        """Remove what a run has left in a folder, and nothing else; a folder that is not that of a run is refused.

        The lock stays: whoever removes a run holds it.
        """
        if not path.exists():
            return
        folder = cls.of_run(path)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
        shutil.rmtree(path / "events", ignore_errors=True)
        names = (
            "about.json",
            "environment.json",
            "metrics.jsonl",
            "networks.jsonl",
            "graph.json",
            "result.txt",
            "result.json",
            "dense.safetensors",
        )
        files = [path / name for name in names] + [*path.glob("round-*.*"), *path.glob("cut-*.safetensors"), folder.recipe_file]
        for file in files:
            file.unlink(missing_ok=True)

    @classmethod
    def of_run(cls, path: Path) -> RunFolder:
        folder = cls(path)
        if not folder.recipe_file.is_file():
            raise RunError(f"{path} is not a run folder: it has no recipe.toml")
        return folder

    @classmethod
    def begun(cls, path: Path, recipe: Recipe) -> RunFolder | None:
        """The folder of a run that was started here with the same recipe; None if there is none yet."""
        folder = cls(path)
        if not folder.recipe_file.is_file():
            return None
        check_same_recipe(as_mapping(folder.recipe()), recipe, folder.recipe_file)
        return folder

    def recipe(self) -> Recipe:
        return read_recipe(self.recipe_file)

    def keep_recipe(self, recipe: Recipe) -> None:
        """Replace the recipe of a run that is resumed with changes, with the changes in a comment at the end of the file."""
        before = self.recipe()
        if recipe == before:
            return
        comments = [line for line in self.recipe_file.read_text().splitlines() if line.startswith(_CHANGED)]
        for key in differing_keys(as_mapping(before), as_mapping(recipe)):
            old, new = (value_at(as_mapping(each), key) for each in (before, recipe))
            comments.append(f"{_CHANGED} {key} from {old} to {new}")
        _write(self.recipe_file, recipe_text(recipe) + "\n" + "\n".join(comments) + "\n")

    def round_file(self, number: int) -> Path:
        return self.path / f"round-{number + 1}.safetensors"

    def cut_file(self, number: int) -> Path:
        """The network of a round before fine-tuning, from which another round may start."""
        return self.path / f"cut-{number + 1}.safetensors"

    def record(self, moment: Moment, total_steps: int) -> None:
        """Append a line to metrics.jsonl, and the same values to the TensorBoard events."""
        line = {"total_steps": total_steps, **moment.as_json()}
        with self.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")
        events = self._writer(total_steps)
        for key in ("loss", "lr", "accuracy", "test_loss", "cost_left", "alpha", "living"):
            if line.get(key) is not None:
                events.add_scalar(f"{moment.phase}/{key}", line[key], total_steps)
        events.flush()

    def record_network(self, network: NetworkRecord) -> None:
        """Append a line to networks.jsonl; a resumed run may write the same network again, and then the last line counts."""
        with self.networks.open("a") as file:
            file.write(json.dumps(asdict(network)) + "\n")

    def write_outline(self, outline: Outline) -> None:
        _write(self.outline, json.dumps(outline.to_data()) + "\n")

    def _writer(self, step: int) -> Any:
        if self._events is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self._events = _NoEvents()
            else:
                self._events = SummaryWriter(str(self.path / "events"), purge_step=step)
        return self._events

    def write_about(self, about: About) -> None:
        """Write what belongs to all networks of the run; their figures are in their files."""
        _write(self.path / "about.json", json.dumps(about.to_data(), indent=2) + "\n")

    def finish(self, result: dict[str, Any], table: str) -> None:
        """Write result.txt and, last, result.json, which marks the run as finished."""
        _write(self.path / "result.txt", f"{table}\n")
        _write(self.result, json.dumps(result, indent=2) + "\n")

    def metrics_bytes(self) -> int:
        return self.metrics.stat().st_size

    def truncate_metrics(self, size: int) -> None:
        """Drop the lines that were written after the last checkpoint: the resumed run writes them again."""
        try:
            with self.metrics.open("r+b") as file:
                file.truncate(min(size, self.metrics_bytes()))
        except OSError as error:
            raise RunError(f"{self.metrics} cannot be written to: {error}") from error

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


class _NoEvents:
    """Used if TensorBoard is not installed; metrics.jsonl has the same values."""

    def add_scalar(self, *_: Any) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _is_unused(entry: Path) -> bool:
    """Whether this is what a process leaves behind that is killed while it creates a run folder."""
    if entry.name == "checkpoints":
        return not any(entry.iterdir())
    if entry.name == "metrics.jsonl":
        return not entry.stat().st_size
    return entry.name in ("environment.json", LOCK) or entry.name.startswith(".recipe.toml.")


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def next_free(parent: Path, name: str) -> Path:
    """runs/digits, runs/digits-2, ..."""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def environment(recipe: Recipe, device: str, processes: int) -> dict[str, Any]:
    """Everything besides the recipe that a result may depend on."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    weights = Path(recipe.model.weights)
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "device": device,
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "versions": versions,
        "git": _git(),
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else None,
    }


def _git() -> dict[str, Any] | None:
    """The commit that is checked out in the working directory, and whether there are uncommitted changes."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def check_same_recipe(saved: dict[str, Any], recipe: Recipe, path: Path) -> None:
    """Raise a RunError unless a checkpoint was written with this recipe, apart from keys that may change."""
    here = as_mapping(recipe)
    changed = [key for key in differing_keys(saved, here) if not may_change(key)]
    if changed:
        raise RunError(
            f"{path} was written with another recipe; these keys differ: {', '.join(changed)}\n"
            "  Undo the change to resume this run, or start a new one in another folder."
        )
