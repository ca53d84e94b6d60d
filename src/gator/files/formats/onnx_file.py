"""ONNX files, run by ONNX Runtime. What belongs to the network is in the model's metadata, one key each."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gator.errors import FileError, GatorError
from gator.extras import optional_import
from gator.files.formats.format import Format, Run
from gator.files.program import Program
from gator.graph.inputs import TensorSpec


class Onnx(Format):
    """ONNX, with weights inside the file."""

    name, suffix, runtime = "onnx", ".onnx", "ONNX Runtime"

    def check(self) -> None:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            _needed(package)

    def write(self, program: Program, path: Path, about: dict[str, str]) -> tuple[Path, ...]:
        count = sum(isinstance(leaf, TensorSpec) for leaf in program.inputs.leaves)
        names = ["input"] if count == 1 else [f"input_{index}" for index in range(count)]
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(program.exported, input_names=names, dynamo=True, verbose=False)
            assert made is not None
            made.model.metadata_props.update(about)
            made.save(path)
        return (path, *path.parent.glob(f"{path.name}.data"))  # weights of more than 2 GB go to a second file

    def open(self, path: Path, threads: int = 0) -> Run:
        runtime, session = _needed("onnxruntime"), None
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class of its own for every kind of damage
            raise FileError(f"{path} cannot be opened by ONNX Runtime: {error}") from error
        names = [each.name for each in session.get_inputs()]

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            feed = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
            try:
                return tuple(torch.from_numpy(array) for array in session.run(None, feed))
            except Exception as error:
                raise GatorError(f"ONNX Runtime cannot run {path}: {error}") from error

        return run

    def about(self, path: Path) -> dict[str, str]:
        try:
            model = _needed("onnx").load(str(path), load_external_data=False)
        except Exception as error:  # a damaged file can fail in any way
            raise FileError(f"{path} cannot be read as an ONNX file: {error}") from error
        return {each.key: each.value for each in model.metadata_props}


@contextlib.contextmanager
def _quiet() -> Any:
    """The exporter prints and logs its progress; what goes wrong it raises."""
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")}
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _needed(package: str) -> Any:
    return optional_import(package, extra="onnx", purpose="an ONNX file")
