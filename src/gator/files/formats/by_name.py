"""The formats by name and by suffix."""

from __future__ import annotations

from pathlib import Path

from gator.errors import FileError
from gator.files.formats.format import Format
from gator.files.formats.onnx_file import Onnx
from gator.files.formats.openvino_file import OpenVino
from gator.files.formats.pt2_file import Pt2
from gator.suggest import did_you_mean

FORMATS: dict[str, Format] = {each.name: each for each in (Onnx(), Pt2(), OpenVino())}
BY_SUFFIX: dict[str, Format] = {each.suffix: each for each in FORMATS.values()}


def format_named(name: str) -> Format:
    if name not in FORMATS:
        raise FileError(f"unknown format {name!r}; {did_you_mean(name, FORMATS, otherwise=f'expected {_listed(FORMATS)}')}")
    return FORMATS[name]


def format_of(path: Path) -> Format:
    if path.suffix not in BY_SUFFIX:
        raise FileError(f"{path}: expected a file that ends in {_listed(BY_SUFFIX)}")
    return BY_SUFFIX[path.suffix]


def _listed(names: dict[str, Format]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"
