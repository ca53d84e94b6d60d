"""`export`: a network as a file for another runtime, checked there against PyTorch; a file that differs is not left behind.

Beside the file there is a model card in Markdown, and what belongs to the network as JSON; the file itself has it too.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gator.atomic_file import write_atomically
from gator.errors import FileError
from gator.files.about import About
from gator.files.formats.by_name import format_of
from gator.files.formats.format import Format, as_strings
from gator.files.model_card import model_card
from gator.files.program import Program, compare, program_of


@dataclass(frozen=True)
class Exported:
    """What `gator.export` returns: the files it wrote, and how they were checked."""

    path: Path
    files: tuple[Path, ...]  # the file itself, its weights if they are apart, the model card and the JSON file
    runtime: str  # that ran it for the check
    sizes: str  # the inputs that it takes
    folded: int  # batch norms that became part of the layers before them
    difference: float  # the largest from PyTorch, relative to the largest output
    checked_on: str

    def __str__(self) -> str:
        return (
            f"{self.path}: takes {self.sizes}; {self.folded} batch norms folded\n"
            f"differs from PyTorch by {self.difference:.1e} in {self.runtime}, on {self.checked_on}"
        )


def export(
    model: nn.Module,
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    about: About | None = None,
    real_inputs: Sequence[Tensor] = (),
    table: str = "",
    source: str | os.PathLike[str] | None = None,
) -> Exported:
    """Write a network for another runtime, and check the file there.

    The batch size is free, and so are height and width where the network allows it; batch norms are folded. The file is run in
    its own runtime (ONNX Runtime, torch.export, OpenVINO) on random inputs of several sizes and on `real_inputs`; if an output
    differs from PyTorch's by more than 1e-4 of the largest one, and by more than PyTorch's own rounding explains, nothing is
    written.

    Args:
        model: the network; it is not changed, and computes in eval mode.
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments.
        path: ends in .onnx, .pt2 (torch.export; plain torch opens it) or .xml (OpenVINO).
        about: preprocessing, names of classes and other metadata; kept in the file, and beside it in PATH.json and in a model
            card, PATH.md.
        real_inputs: batches to check on besides random ones.
        table: figures for the model card, as text.
        source: the file that the network was loaded from, whose checksum goes into the model card.

    Returns:
        An `Exported`: the files, and how they were checked.

    Raises:
        FileError: if the file cannot be written, or computes something else; MissingExtraError if a package is missing;
            GatorError if torch.export cannot export the network.

    Examples:
        >>> gator.export(small, torch.zeros(1, 1, 8, 8), "small.pt2").sizes
        'any batch size, any height and width'
    """
    target, about = Path(path), about or About()
    chosen = format_of(target)
    chosen.check()
    if not target.parent.is_dir():
        raise FileError(f"cannot write {target}: there is no folder {target.parent}")
    program = program_of(model, example_inputs)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as folder:
        try:
            written = chosen.write(program, Path(folder) / target.name, as_strings(about))
        except Exception as error:  # exporters may raise anything
            first = str(error).strip().partition("\n")[0]
            raise FileError(f"the network cannot be written as {chosen.name}: {type(error).__name__}: {first}") from error
        examples = [*program.examples(seed=1), *((batch,) for batch in real_inputs)]
        difference = _difference(program, chosen, written[0], examples)
        sums = {file.name: _sha256(file) for file in written} | ({Path(source).name: _sha256(Path(source))} if source else {})
        checked_on = f"{len(program.examples())} random batches" + _real(real_inputs)
        done = Exported(target, (), chosen.runtime, program.sizes, program.folded, difference, checked_on)
        texts = {
            ".json": json.dumps({**about.to_data(), "sha256": sums}, indent=2) + "\n",
            ".md": model_card(target.name, about, str(replace(done, path=Path(target.name))), program, sums, table),
        }
        for file in written:
            file.replace(target.parent / file.name)
    beside = [target.with_name(target.name + suffix) for suffix in texts]
    for file, text in zip(beside, texts.values(), strict=True):
        write_atomically(file, lambda temporary, text=text: temporary.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    files = (*(target.parent / file.name for file in written), *beside)
    return replace(done, files=files)


def _difference(program: Program, chosen: Format, file: Path, examples: list[tuple[Tensor, ...]]) -> float:
    """How far the file is from PyTorch. Raises FileError if it is too far."""
    found = compare(program.reference, chosen.open(file), examples)
    if not found.fits:
        raise FileError(
            f"the {chosen.name} file gives other numbers than PyTorch in {chosen.runtime}: they differ by "
            f"{found.difference:.1e} of the largest output\n"
            "  It was removed. Another format may work; please report the network."
        )
    return found.difference


def _real(batches: Sequence[Tensor]) -> str:
    return f" and {sum(len(batch) for batch in batches)} real examples" if batches else ""


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
