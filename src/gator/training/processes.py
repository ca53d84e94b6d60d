"""The processes of a run and the device of this one, with torch.distributed: one CPU, or many GPUs on many nodes.

Several processes are started by `torchrun`, `accelerate launch` or any launcher that sets RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT. A process group that exists already is used as it is.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from gator.errors import RecipeError
from gator.training.fresh_store import fresh_store
from gator.training.precision import Precision
from gator.training.recipe import RunSettings


class Processes:
    """This process among the others of the run. `close` restores what was changed for the run."""

    def __init__(self, settings: RunSettings) -> None:
        existing = dist.is_initialized()
        self.count = dist.get_world_size() if existing else int(os.environ.get("WORLD_SIZE", 1))
        self.rank = dist.get_rank() if existing else int(os.environ.get("RANK", 0)) if self.count > 1 else 0
        self.device = _device(settings, self.count, int(os.environ.get("LOCAL_RANK", self.rank)))
        self.precision = Precision(settings.precision, self.device)
        self._group_is_ours = self.count > 1 and not existing
        self._wrapped: WeakSet[DistributedDataParallel] = WeakSet()
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        if self._group_is_ours:
            _init_process_group("nccl" if self.device.type == "cuda" else "gloo", settings.timeout_seconds)
        self._threads = torch.get_num_threads()
        if settings.threads:
            torch.set_num_threads(settings.threads)

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the process that writes files and reports progress."""
        return self.rank == 0

    def data_parallel(self, network: nn.Module, *, some_unused: bool) -> nn.Module:
        """The network to call in training, such that gradients are averaged over all processes.

        `some_unused`: parameters may get no gradient in a step, because the channels they belong to are closed.
        """
        if self.count == 1:
            return network
        ids = [self.device.index] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(network, device_ids=ids, find_unused_parameters=some_unused)
        self._wrapped.add(wrapped)
        return wrapped

    def no_sync(self, network: nn.Module) -> AbstractContextManager[Any]:
        """Inside, gradients are accumulated in this process; the next backward pass outside averages them."""
        return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()

    def sums(self, values: list[float]) -> list[float]:
        """Each value summed over all processes."""
        if self.count == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64 if self.device.type == "cpu" else torch.float32, device=self.device)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def broadcast_buffers_(self, network: nn.Module) -> None:
        """Give every process the buffers of rank 0: running statistics differ from process to process."""
        if self.count > 1:
            for buffer in network.buffers():
                dist.broadcast(buffer, 0)

    def close(self) -> None:
        """Restore the number of threads, and destroy the process group if this run created it."""
        torch.set_num_threads(self._threads)
        if self._group_is_ours and dist.is_initialized():
            # After an error its traceback keeps the wrappers alive. A reducer that is the last to hold the group waits for the
            # threads of gloo without releasing the GIL, which those may be waiting for: the process would never end.
            for wrapped in self._wrapped:
                wrapped.reducer = wrapped.logger = None  # type: ignore[assignment]
            dist.destroy_process_group()


def _init_process_group(backend: str, timeout_seconds: float) -> None:
    """As dist.init_process_group(backend), but a second run in the same processes works, and one that torchrun starts again."""
    store, rank, count = next(rendezvous("env://"))
    timeout = timedelta(seconds=timeout_seconds) if timeout_seconds else None
    dist.init_process_group(backend, store=fresh_store(store, rank, count), rank=rank, world_size=count, timeout=timeout)


def _device(settings: RunSettings, count: int, local_rank: int) -> torch.device:
    """The device of this process; a GPU of its own where there are several processes."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available() and count == 1, "cpu": True}
    kind = next(name for name, found in available.items() if found) if settings.device == "auto" else settings.device
    if not available[kind]:
        found = "but MPS runs one process only" if kind == "mps" and count > 1 else "but torch finds no such device here"
        raise RecipeError(f"run.device = {kind!r}, {found}; use 'auto' or 'cpu'")
    if settings.precision == "fp16" and kind == "cpu":
        raise RecipeError("run.precision = 'fp16' needs a GPU; on the CPU use 'bf16' or 'no'")
    if kind == "cuda" and count > 1:
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device(kind)
