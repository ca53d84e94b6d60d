"""Accuracy on test data, and new batch-norm statistics for a network that has just been cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gator.errors import RunError
from gator.private_torch import BatchNorm
from gator.training.processes import Processes
from gator.zoo.data import Loader


def class_scores(output: Any) -> Tensor:
    """The class scores in the output of a network: the tensor itself, the first of a sequence, or `.logits`."""
    found = getattr(output, "logits", output)
    found = found[0] if isinstance(found, Sequence) else found
    if not isinstance(found, Tensor):
        raise RunError(f"the network returned {type(output).__name__}; expected class scores, or an object with .logits")
    return found


def check_scores(scores: Tensor, labels: Tensor) -> None:
    """Raise a RunError if a label has no score."""
    largest = int(labels.max())
    if scores.ndim != 2 or largest >= scores.shape[1]:
        raise RunError(
            f"the network's output has shape {tuple(scores.shape)}, but the data has labels up to {largest}\n"
            "  It must have one row per example and one score per class: change the network's last layer, or the data."
        )


def to_device(x: Tensor, device: torch.device, channels_last: bool) -> Tensor:
    x = x.to(device, non_blocking=True)
    return x.contiguous(memory_format=torch.channels_last) if channels_last and x.ndim == 4 else x


@torch.no_grad()
def evaluate(
    network: nn.Module, loader: Loader, processes: Processes, *, channels_last: bool, float32: bool = False
) -> tuple[float, float]:
    """Accuracy in percent and mean loss on the test data, over all processes; in the precision of the run, or in float32."""
    was_training = network.training
    network.eval()
    right = loss = seen = 0.0
    try:
        for x, y in loader.batches(0):
            y = y.to(processes.device)
            with nullcontext() if float32 else processes.precision.autocast():
                scores = class_scores(network(to_device(x, processes.device, channels_last))).float()
            if not seen:
                check_scores(scores, y)
            right += float((scores.argmax(1) == y).sum())
            loss += float(functional.cross_entropy(scores, y, reduction="sum"))
            seen += len(y)
    finally:
        network.train(was_training)
    right, loss, seen = processes.sums([right, loss, seen])
    if not seen:
        raise RunError("there is no test data to evaluate on")
    return 100 * right / seen, loss / seen


@torch.no_grad()
def recalibrate_(network: nn.Module, loader: Loader, processes: Processes, *, batches: int, channels_last: bool) -> None:
    """Recompute mean and variance of every batch norm over this many training batches.

    Right after a cut they are still those of the larger network.
    """
    norms = [m for m in network.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    if not norms or not batches:
        return
    with _averaging(network, norms):
        left, epoch = batches, 0
        while left > 0:
            for x, _ in loader.batches(epoch):
                with processes.precision.autocast():
                    network(to_device(x, processes.device, channels_last))
                left -= 1
                if left <= 0:
                    break
            epoch += 1
    processes.broadcast_buffers_(network)


@contextmanager
def _averaging(network: nn.Module, norms: Sequence[BatchNorm]) -> Iterator[None]:
    """Inside, batch norms start anew and average over all batches; other layers (dropout, for example) are in eval mode."""
    was_training, momenta = network.training, [norm.momentum for norm in norms]
    network.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the cumulative mean over all batches
            norm.train()
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        network.train(was_training)
