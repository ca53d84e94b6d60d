"""What a latency is a latency of: runtime, device, threads, number type, memory layout and batch.

All of it is stated, checked before any work is done, and no longer so when the measuring is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gator.cost.latency.heap import heap_kept
from gator.errors import GatorError
from gator.graph.inputs import Inputs

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
DEVICES = ("cpu", "cuda", "mps")
Call = tuple[tuple[Any, ...], dict[str, Any]]  # args and kwargs of one forward


@dataclass(frozen=True)
class Setup:
    """The conditions of a measurement; `batch` None is that of the example inputs."""

    runtime: str
    device: str
    threads: int
    dtype: str
    channels_last: bool
    batch: int | None

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def call(self, inputs: Inputs) -> Call:
        """Made-up inputs of the right batch and type, on the device."""
        if self.batch is not None and inputs.batch is None:
            raise GatorError(f"batch={self.batch}, but this network takes no other batch than that of its example inputs")
        return self.placed(inputs.random(batch=self.batch))

    def placed(self, call: Call) -> Call:
        """These inputs on the device, in the type and layout that are asked for."""
        found: Call = pytree.tree_map(self._placed, call)
        return found

    def _placed(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        dtype = self.torch_dtype if leaf.dtype.is_floating_point else leaf.dtype

        placed = leaf.to(self.device, dtype)
        return placed.contiguous(memory_format=torch.channels_last) if self.channels_last and leaf.ndim == 4 else placed

    @contextmanager
    def on(self) -> Iterator[None]:
        """Threads as asked for, no gradients and no memory given back, for as long as the block lasts."""
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


def made_setup(
    runtime: str, device: str, threads: int | None, dtype: str | torch.dtype, channels_last: bool, batch: int | None
) -> Setup:
    """A setup from what a person wrote, refused before any work is done."""
    if device not in DEVICES:
        raise GatorError(f"device={device!r}; expected one of {', '.join(DEVICES)}")
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here[device]:
        raise GatorError(f'device="{device}", but torch finds no such device here; use device="cpu"')
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise GatorError(f"dtype={dtype!r}; expected one of {', '.join(DTYPES)}")
    for what, value in (("threads", threads), ("batch", batch)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise GatorError(f"{what}={value!r}; expected a whole number, 1 or more")
    return Setup(runtime, device, threads or torch.get_num_threads(), name, channels_last, batch)
