"""ONNX Runtime: the network is exported to ONNX and run by a session of its own."""

from __future__ import annotations

import io
import json
import statistics
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from gator.cost.latency.runtimes.run_setup import Arguments, Run, Setup
from gator.errors import GatorError
from gator.extras import optional_import
from gator.private_torch import pytree

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OnnxRuntime:
    """ONNX Runtime with its own graph optimizations, on the CPU or through CUDA."""

    def check(self, setup: Setup) -> None:
        provider = _PROVIDERS.get(setup.device)
        if provider is None:
            raise GatorError(f'device="{setup.device}" with runtime="onnxruntime"; expected {" or ".join(_PROVIDERS)}')
        if provider not in _needed("onnxruntime").get_available_providers():
            raise GatorError(f'device="{setup.device}": this onnxruntime has no {provider}; pip install onnxruntime-gpu')
        _needed("onnx")
        if setup.dtype not in ("float32", "float16"):
            raise GatorError(f'dtype={setup.dtype!r} with runtime="onnxruntime"; expected float32 or float16')
        if setup.channels_last:
            raise GatorError(
                'channels_last=True with runtime="onnxruntime", which chooses its own layout; leave channels_last out'
            )

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": str(_needed("onnxruntime").__version__)}

    def prepare(self, network: nn.Module, arguments: Arguments, setup: Setup) -> Run:
        session, feed = self._session(network, arguments, setup, profile="")
        if setup.device == "cpu":
            return lambda: session.run(None, feed)
        return bound(session, feed, setup.device)

    def layers(self, network: nn.Module, arguments: Arguments, setup: Setup, rounds: int) -> list[tuple[str, float]]:
        """The kernels that are left after fusion, each by the name of its last node."""
        with tempfile.TemporaryDirectory() as folder:
            session, feed = self._session(network, arguments, setup, profile=str(Path(folder) / "profile"))
            for _ in range(rounds + 1):
                session.run(None, feed)
            events = json.loads(Path(session.end_profiling()).read_text())
        spent: dict[str, list[float]] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                name = f"{event['name'].removesuffix('_kernel_time')} ({event['args'].get('op_name', '?')})"
                spent.setdefault(name, []).append(event["dur"] / 1e3)
        return [(name, statistics.median(times)) for name, times in spent.items()]

    def _session(self, network: nn.Module, arguments: Arguments, setup: Setup, profile: str) -> tuple[Any, dict[str, Any]]:
        runtime = _needed("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = setup.threads
        # Threads that spin until the next run would slow down the networks that are interleaved with this one.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        written, given = export_onnx(setup.placed_network(network), arguments)
        session = runtime.InferenceSession(written, options, providers=[_PROVIDERS[setup.device]])
        if session.get_providers()[0] != _PROVIDERS[setup.device]:
            raise GatorError(f'device="{setup.device}": onnxruntime cannot load {_PROVIDERS[setup.device]} here; see its log')
        return session, {each.name: given[each.name] for each in session.get_inputs()}


def bound(session: Any, feed: Mapping[str, NDArray[Any]], device: str) -> Run:
    """A run whose inputs and outputs stay on the device, as those of layers inside a network do."""
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, _needed("onnxruntime").OrtValue.ortvalue_from_numpy(array, device, 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, device)

    def run() -> Any:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return binding.get_outputs()

    return run


class _Flat(nn.Module):
    """A network as a function of the tensors among its arguments, in order; the others are constants."""

    def __init__(self, network: nn.Module, arguments: Arguments) -> None:
        super().__init__()
        self.network = network
        self.leaves, self.structure = pytree.tree_flatten(arguments)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.network(*args, **kwargs)


def export_onnx(network: nn.Module, arguments: Arguments) -> tuple[bytes, dict[str, NDArray[Any]]]:
    """The network as ONNX with fixed sizes, and its inputs by name; inputs that it does not read may be missing in the file.

    The TorchScript exporter takes a tenth of the time, which matters for hundreds of layers; what it cannot export, the
    dynamo exporter may.
    """
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")
        copied = pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, arguments)
        flat = _Flat(network, copied).eval()
        inputs = tuple(flat.tensors)
        names = [f"x{index}" for index in range(len(inputs))]
        given = {name: tensor.cpu().numpy() for name, tensor in zip(names, inputs, strict=True)}
        try:
            file = io.BytesIO()
            torch.onnx.export(flat, inputs, file, input_names=names, dynamo=False, opset_version=17)  # type: ignore[arg-type]
            return file.getvalue(), given
        except Exception:  # the exporter may raise anything
            return _by_dynamo(flat, inputs, names), given


def _by_dynamo(flat: nn.Module, inputs: tuple[torch.Tensor, ...], names: list[str]) -> bytes:
    try:
        program = torch.onnx.export(flat, inputs, input_names=names, dynamo=True, verbose=False)
        assert program is not None
        data: bytes = program.model_proto.SerializeToString()
        return data
    except Exception as error:  # the exporter may raise anything
        first = str(error).strip().partition("\n")[0]
        raise GatorError(f"this network cannot be exported to ONNX: {type(error).__name__}: {first}") from error


def _needed(package: str) -> Any:
    return optional_import(package, extra="onnx", purpose='runtime="onnxruntime"')
