"""Devices, processes and precision, by way of Accelerate: one CPU, or many GPUs on many nodes, for the same code."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gator.errors import MissingExtraError, RecipeError
from gator.training.recipe import RunSettings


class Processes:
    """This process among the others. `close` gives back what was taken."""

    def __init__(self, settings: RunSettings) -> None:
        try:
            import accelerate
        except ImportError as error:
            raise MissingExtraError("a run needs Accelerate; pip install 'torch-gator[train]'") from error
        here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if settings.device not in ("auto", "cpu", "cuda", "mps"):
            raise RecipeError(f"run.device = {settings.device!r}; expected 'auto', 'cpu', 'cuda' or 'mps'")
        if not here.get(settings.device, True):
            raise RecipeError(f"run.device = {settings.device!r}, but torch sees no such device here; use 'auto' or 'cpu'")
        cpu = settings.device == "cpu" or not any(here.values())
        if settings.precision == "fp16" and cpu:
            raise RecipeError("run.precision = 'fp16' needs a GPU; on the CPU use 'bf16' or 'no'")
        self._group_is_ours = not dist.is_initialized()
        self._accelerator = accelerate.Accelerator(cpu=cpu, mixed_precision=settings.precision)
        self._threads = torch.get_num_threads()
        if settings.threads:
            torch.set_num_threads(settings.threads)

    @property
    def device(self) -> torch.device:
        device: torch.device = self._accelerator.device
        return device

    @property
    def count(self) -> int:
        return int(self._accelerator.num_processes)

    @property
    def rank(self) -> int:
        return int(self._accelerator.process_index)

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def wrapped(self, network: nn.Module, *, channels_may_go: bool) -> nn.Module:
        """The network as it is called in training: with gradients averaged over all processes."""
        if self.count == 1:
            return network
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(network, device_ids=ids, find_unused_parameters=channels_may_go)

    def autocast(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._accelerator.autocast()
        return context

    def apart(self, network: nn.Module) -> AbstractContextManager[Any]:
        """Gradients inside are added up here and exchanged later."""
        return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()

    def backward(self, loss: Tensor) -> None:
        # Not Accelerate's own, which divides by an accumulation that its launcher may have set: the loop does that.
        scaler = self._accelerator.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()

    def update(self, optimizer: Optimizer, parameters: list[nn.Parameter], clip: float) -> None:
        """One step of the optimizer; where the loss was scaled, an overflow leaves it out."""
        scaler = self._accelerator.scaler
        if clip:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()

    def scaler_state(self) -> dict[str, Any]:
        scaler = self._accelerator.scaler
        return {} if scaler is None else dict(scaler.state_dict())

    def load_scaler_(self, state: dict[str, Any]) -> None:
        if state and self._accelerator.scaler is not None:
            self._accelerator.scaler.load_state_dict(state)

    def total(self, values: list[float]) -> list[float]:
        """Sums over all processes."""
        if self.count == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64 if self.device.type == "cpu" else torch.float32, device=self.device)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def gathered(self, value: Any) -> list[Any]:
        """What every process has, in the order of ranks."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def same_buffers_(self, network: nn.Module) -> None:
        """Running statistics differ from process to process; those of the first count."""
        if self.count > 1:
            for buffer in network.buffers():
                dist.broadcast(buffer, 0)

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()

    def close(self) -> None:
        """Forget the precision and the number of threads, so that another run in this process may have others; and part from
        the other processes in good order, if it was this run that met them."""
        from accelerate.state import AcceleratorState

        torch.set_num_threads(self._threads)
        ours = self._group_is_ours and dist.is_initialized()
        AcceleratorState._reset_state(reset_partial_state=ours or self.count == 1)
        if ours:
            dist.destroy_process_group()
