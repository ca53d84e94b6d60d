"""The conditions of a measurement: runtime, device, threads, dtype, memory layout and batch.

They are checked before anything is measured, and the process is as before when the measurement is over.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

from gator.cost.latency.runtimes.allocator import heap_kept
from gator.errors import GatorError
from gator.graph.inputs import Inputs
from gator.private_torch import pytree

RuntimeName = Literal["eager", "compile", "onnxruntime", "openvino"]
LatencyMethod = Literal["table", "probe"]
DtypeName = Literal["float32", "float16", "bfloat16", "float64"]
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(DtypeName)}
DEVICES = ("cpu", "cuda", "mps")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # args and kwargs of one forward
Run = Callable[[], Any]  # runs a network once and waits for the result


@dataclass(frozen=True)
class Setup:
    """The conditions of a measurement; with `batch` None, the batch of the example inputs."""

    runtime: str
    device: str
    threads: int
    dtype: str
    channels_last: bool
    batch: int | None

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def arguments(self, inputs: Inputs) -> Arguments:
        """Random inputs of the right batch and dtype, on the device."""
        if self.batch is not None and inputs.batch is None:
            raise GatorError(f"batch={self.batch}, but this network only takes the batch of its example inputs")
        return self.placed(inputs.random(batch=self.batch))

    def placed(self, arguments: Arguments) -> Arguments:
        """These inputs on the device, in the dtype and memory layout of the setup."""
        found: Arguments = pytree.tree_map(self._placed, arguments)
        return found

    def placed_network(self, network: nn.Module) -> nn.Module:
        """A copy of the network in eval mode, on the device, in the dtype and memory layout of the setup."""
        copied = copy.deepcopy(network).eval().to(self.device, self.torch_dtype)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return copied.to(memory_format=layout)  # type: ignore[no-any-return, call-overload]

    def _placed(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        dtype = self.torch_dtype if leaf.dtype.is_floating_point else leaf.dtype
        placed = leaf.to(self.device, dtype)
        return placed.contiguous(memory_format=torch.channels_last) if self.channels_last and leaf.ndim == 4 else placed

    @contextmanager
    def on(self) -> Iterator[None]:
        """The threads of the setup, inference mode, and freed memory kept in the process, until the block ends."""
        before = torch.get_num_threads()
        if before != self.threads:
            torch.set_num_threads(self.threads)
        try:
            with torch.inference_mode(), heap_kept():
                yield
        finally:
            if before != self.threads:
                torch.set_num_threads(before)

    def __str__(self) -> str:
        parts = [self.runtime, self.device, f"{self.threads} thread{'' if self.threads == 1 else 's'}", self.dtype]
        parts += ["channels last"] if self.channels_last else []
        return ", ".join([*parts, "batch of the example inputs" if self.batch is None else f"batch {self.batch}"])


def checked_setup(
    runtime: str, device: str, threads: int | None, dtype: str | torch.dtype, channels_last: bool, batch: int | None
) -> Setup:
    """A setup from the user's settings. Raises GatorError if one is not valid or not possible on this machine."""
    if device not in DEVICES:
        raise GatorError(f"device={device!r}; expected one of {', '.join(DEVICES)}")
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here[device]:
        raise GatorError(f'device="{device}", but torch does not find such a device on this machine; use device="cpu"')
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise GatorError(f"dtype={dtype!r}; expected one of {', '.join(DTYPES)}")
    for what, value in (("threads", threads), ("batch", batch)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise GatorError(f"{what}={value!r}; expected an integer, 1 or more")
    return Setup(runtime, device, threads or torch.get_num_threads(), name, channels_last, batch)
