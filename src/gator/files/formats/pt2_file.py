"""`pt2` files of torch.export, which plain torch opens. What belongs to the network is in an extra file inside, as JSON."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gator.errors import FileError
from gator.files.formats.format import Format, Run
from gator.files.program import Program
from gator.private_torch import pytree

_EXTRA = "about.json"


class Pt2(Format):
    """torch.export's own format."""

    name, suffix, runtime = "pt2", ".pt2", "torch.export"

    def check(self) -> None:
        """torch is always there."""

    def write(self, program: Program, path: Path, about: dict[str, str]) -> tuple[Path, ...]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(program.exported, path, extra_files={_EXTRA: json.dumps(about)})
        return (path,)

    def open(self, path: Path, threads: int = 0) -> Run:  # noqa: ARG002
        call = _read(path, {}).module()

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return tuple(leaf for leaf in pytree.tree_leaves(call(*tensors)) if isinstance(leaf, Tensor))

        return run

    def about(self, path: Path) -> dict[str, str]:
        extra = {_EXTRA: ""}
        _read(path, extra)
        found: dict[str, str] = json.loads(extra[_EXTRA] or "{}")
        return found


def _read(path: Path, extra: dict[str, Any]) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path, extra_files=extra)
    except Exception as error:  # a damaged archive can fail in any way
        raise FileError(f"{path} cannot be read by torch.export: {error}") from error
