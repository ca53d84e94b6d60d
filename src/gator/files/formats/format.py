"""What a format is: how a program is written, read back with what belongs to it, and run by the format's own runtime."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from gator.errors import FileError
from gator.files.about import About
from gator.files.program import Program

Run = Callable[..., tuple[Tensor, ...]]  # from the tensors of a call to those of the result, in order


class Format(ABC):
    """A format by its name and suffix."""

    name: str
    suffix: str
    runtime: str  # what runs it, for people

    @abstractmethod
    def check(self) -> None:
        """Raise MissingExtraError if a package that writes or runs this format is not installed."""

    @abstractmethod
    def write(self, program: Program, path: Path, about: dict[str, str]) -> tuple[Path, ...]:
        """Write a program with what belongs to it, as strings by key; returns all files that were written."""

    @abstractmethod
    def open(self, path: Path, threads: int = 0) -> Run:
        """A function that runs a file; threads: 0 for as many as the runtime wants."""

    @abstractmethod
    def about(self, path: Path) -> dict[str, str]:
        """What `write` was given."""


def as_strings(about: About) -> dict[str, str]:
    """What belongs to a network as strings by key, for the metadata of a file: JSON, except for texts."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.to_data().items()}


def from_strings(found: dict[str, str], path: Path) -> About:
    """The inverse of `as_strings`. A file that Gator did not write gives an empty `About`."""
    if "class_names" not in found:
        return About()
    texts = ("network", "recipe", "tested_on")
    try:
        keys: dict[str, Any] = {
            key: found[key] if key in texts else json.loads(found[key]) for key in About().to_data() if key in found
        }
        return About.from_data(keys)
    except ValueError as error:
        raise FileError(f"{path}: what is recorded about the network in it is damaged ({error})") from error
