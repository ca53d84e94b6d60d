"""OpenVINO files: NAME.xml with the program and NAME.bin with the weights, made from ONNX."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gator.errors import FileError, GatorError
from gator.extras import optional_import
from gator.files.formats.format import Format, Run
from gator.files.formats.onnx_file import Onnx
from gator.files.program import Program

_SECTION = "gator"  # of the model's runtime information


class OpenVino(Format):
    """OpenVINO's intermediate representation, with weights in float32."""

    name, suffix, runtime = "openvino", ".xml", "OpenVINO"

    def check(self) -> None:
        Onnx().check()
        _needed()

    def write(self, program: Program, path: Path, about: dict[str, str]) -> tuple[Path, ...]:
        openvino = _needed()
        with tempfile.TemporaryDirectory() as folder:
            (written, *_) = Onnx().write(program, Path(folder) / "network.onnx", {})
            model = openvino.Core().read_model(str(written))
            for key, value in about.items():
                model.set_rt_info(value, [_SECTION, key])
            openvino.save_model(model, str(path), compress_to_fp16=False)
        return path, path.with_suffix(".bin")

    def open(self, path: Path, threads: int = 0) -> Run:
        # In float32 on every processor: where there is hardware for bfloat16, OpenVINO would round to it.
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = _needed().Core().compile_model(_model(path), "CPU", settings)

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            try:
                found = compiled([tensor.numpy() for tensor in tensors])
            except Exception as error:
                raise GatorError(f"OpenVINO cannot run {path}: {error}") from error
            return tuple(torch.from_numpy(found[port].copy()) for port in compiled.outputs)

        return run

    def about(self, path: Path) -> dict[str, str]:
        model = _model(path)
        if not model.has_rt_info([_SECTION]):
            return {}
        return {key: model.get_rt_info([_SECTION, key]).astype(str) for key in model.get_rt_info([_SECTION]).value}


def _model(path: Path) -> Any:
    try:
        return _needed().Core().read_model(str(path))
    except Exception as error:
        raise FileError(f"{path} cannot be read by OpenVINO: {error}") from error


def _needed() -> Any:
    return optional_import("openvino", extra="openvino", purpose="an OpenVINO file")
