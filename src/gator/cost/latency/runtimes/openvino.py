"""OpenVINO: Intel's runtime, which also serves other x86 and Arm processors."""

from __future__ import annotations

import statistics
import warnings
from typing import Any

from torch import nn

from gator.cost.latency.runtimes.onnx_runtime import export_onnx
from gator.cost.latency.runtimes.run_setup import Arguments, Run, Setup
from gator.errors import GatorError
from gator.extras import optional_import


class OpenVino:
    """OpenVINO on the CPU, set up for the lowest latency of a single call."""

    def check(self, setup: Setup) -> None:
        _needed()
        if setup.device != "cpu" or setup.channels_last or setup.dtype != "float32":
            raise GatorError(f'runtime="openvino" runs on the CPU in float32 and chooses its own layout; the setup is {setup}')

    def versions(self) -> dict[str, str]:
        return {"openvino": str(_needed().__version__)}

    def prepare(self, network: nn.Module, arguments: Arguments, setup: Setup) -> Run:
        request, feed = self._request(network, arguments, setup, profile=False)
        return lambda: request.infer(feed, share_inputs=True)

    def layers(self, network: nn.Module, arguments: Arguments, setup: Setup, rounds: int) -> list[tuple[str, float]]:
        request, feed = self._request(network, arguments, setup, profile=True)
        spent: dict[str, list[float]] = {}
        for _ in range(rounds + 1):
            request.infer(feed, share_inputs=True)
            for node in request.profiling_info:
                if node.real_time.total_seconds() > 0:
                    spent.setdefault(f"{node.node_name} ({node.exec_type})", []).append(1e3 * node.real_time.total_seconds())
        return [(name, statistics.median(times)) for name, times in spent.items()]

    def _request(self, network: nn.Module, arguments: Arguments, setup: Setup, profile: bool) -> tuple[Any, dict[str, Any]]:
        openvino = _needed()
        core = openvino.Core()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written, given = export_onnx(setup.placed_network(network), arguments)
            model = core.read_model(model=written)
        settings = {
            "INFERENCE_NUM_THREADS": setup.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "PERF_COUNT": profile,
        }
        compiled = core.compile_model(model, "CPU", settings)
        return compiled.create_infer_request(), {port.any_name: given[port.any_name] for port in compiled.inputs}


def _needed() -> Any:
    return optional_import("openvino", extra="openvino", purpose='runtime="openvino"')
