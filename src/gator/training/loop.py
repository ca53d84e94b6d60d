"""The training loop of one phase; the dense, the gated and the cut network are all trained by it."""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from gator.errors import RunError
from gator.gates.pruner import Pruner
from gator.training.evaluate import check_scores, class_scores, to_device
from gator.training.learning_rate import Span, learning_rate
from gator.training.narrow_norm import NarrowNorms
from gator.training.processes import Processes
from gator.training.recipe import Phase, Recipe
from gator.training.watch import Moment
from gator.zoo.data import Loader

LEAST_SAVING = 0.05  # as a share of the network's present cost; a smaller one is not worth the rebuilding


@dataclass
class Position:
    """How far a phase is: finished epochs, steps of the current one, and the sum of their losses."""

    epoch: int = 0
    step: int = 0
    loss: float = 0.0
    seconds: float = 0.0  # of training, over all resumptions


def optimizer_for(phase: Phase, parameters: list[nn.Parameter]) -> Optimizer:
    trained = [p for p in parameters if p.requires_grad]
    if phase.optimizer == "adamw":
        return AdamW(trained, lr=phase.lr, weight_decay=phase.weight_decay)
    return SGD(trained, lr=phase.lr, momentum=phase.momentum, weight_decay=phase.weight_decay, nesterov=phase.nesterov)


class Loop:
    """Trains one network for one phase. The caller evaluates and writes checkpoints, between steps and epochs."""

    def __init__(
        self, recipe: Recipe, kind: str, phase: Phase, number: int, network: nn.Module, optimizer: Optimizer, loader: Loader,
        processes: Processes, *, pruner: Pruner | None = None, teacher: nn.Module | None = None,
        first_epoch: int = 0, span: Span, whole_cost: float = 0.0, channels: int | None = None,
    ) -> None:  # fmt: skip
        self.kind, self.phase, self.number = kind, phase, number
        self.network, self.optimizer, self.pruner, self.teacher = network, optimizer, pruner, teacher
        self.position = Position()
        self._recipe, self._loader, self._processes = recipe, loader, processes
        self._first_epoch, self._span, self._whole_cost, self._channels = first_epoch, span, whole_cost, channels
        self._called = self._parallel = network
        self.wrap()

    def shrink(self) -> None:
        """Remove closed channels from the network, if that reduces its cost by enough.

        The wrappers around the network hold the old shapes, so they are dropped before and made anew.
        """
        assert self.pruner is not None
        if self.pruner.saved_by_shrinking < LEAST_SAVING:
            return
        self._called = self._parallel = self.network
        if self._recipe.run.compile:
            torch.compiler.reset()
        gc.collect()
        self.pruner.shrink_(self.optimizer)
        self.wrap()

    def wrap(self) -> None:
        """Wrap the network for training: averaged gradients if there are several processes, and torch.compile if asked for."""
        called = self._processes.data_parallel(self.network, some_unused=self.pruner is not None)
        self._called = torch.compile(called) if self._recipe.run.compile else called  # type: ignore[assignment]
        self._parallel = called

    @property
    def steps_an_epoch(self) -> int:
        return len(self._loader)

    @property
    def steps_taken(self) -> int:
        return self.position.epoch * self.steps_an_epoch + self.position.step

    @property
    def lr(self) -> float:
        return learning_rate(self.phase, self.steps_taken, self.steps_an_epoch, self._span)

    def epoch(self, after_step: Callable[[], None]) -> None:
        """Train to the end of the current epoch; `after_step` is called after every step but the last."""
        self.network.train()
        at, total = self.position, self.steps_an_epoch
        batches = self._batches()
        while at.step < total:
            began = time.monotonic()
            batch = next(batches, None)
            if batch is None:
                raise RunError(f"the training loader gave {at.step} batches in an epoch, but its length is {total}")
            at.loss += self._step(*batch)
            at.step += 1
            at.seconds += time.monotonic() - began
            if at.step < total:
                after_step()

    def next_epoch(self) -> None:
        at = self.position
        at.epoch, at.step, at.loss = at.epoch + 1, 0, 0.0

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        # Epochs are numbered on from phase to phase, so that no order of examples is repeated.
        return self._loader.batches(self._first_epoch + self.position.epoch, start=self.position.step)

    def _step(self, batch: Tensor, targets: Tensor) -> float:
        lr, processes = self.lr, self._processes
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        size = self._recipe.data.sub_batch or len(batch)
        parts = list(zip(torch.split(batch, size), torch.split(targets, size), strict=True))
        total = 0.0
        for index, (images, labels) in enumerate(parts):
            share = len(images) / len(batch)
            last = index == len(parts) - 1
            with nullcontext() if last else processes.no_sync(self._parallel):
                x = to_device(images, processes.device, self._recipe.run.in_channels_last)
                loss = self._loss(x, labels.to(processes.device))
                total += float(loss.detach()) * share
                if self.pruner is not None:
                    loss = loss + self.pruner.loss()
                processes.precision.backward(loss * share)
        self._check_finite(total, lr)
        parameters = list(itertools.chain.from_iterable(group["params"] for group in self.optimizer.param_groups))
        processes.precision.step(self.optimizer, parameters, clip=self.phase.clip)
        self.optimizer.zero_grad()
        if self.pruner is not None:
            self.pruner.step(lr=lr)
        return total

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        phase = self.phase
        with self._processes.precision.autocast():
            with self._fast_norms():
                output = self._called(x)
            scores = class_scores(output).float()
            if self.steps_taken == 0:
                check_scores(scores, y)
            loss = functional.cross_entropy(scores, y, label_smoothing=phase.label_smoothing)
            if self.teacher is None:
                return loss
            with torch.no_grad():
                wanted = class_scores(self.teacher(x)).float()
        t = phase.temperature
        divergence = functional.kl_div(
            (scores / t).log_softmax(1), (wanted / t).log_softmax(1), reduction="batchmean", log_target=True
        )
        return (1 - phase.distill) * loss + phase.distill * t * t * divergence

    def _fast_norms(self) -> AbstractContextManager[Any]:
        """On a CPU and in channels_last, faster batch norms; compiled networks have their own."""
        run = self._recipe.run
        wanted = self._processes.device.type == "cpu" and run.in_channels_last and not run.compile
        return NarrowNorms() if wanted else nullcontext()

    def _check_finite(self, loss: float, lr: float) -> None:
        """Raise a LossError in all processes, before any weight has changed, if the loss of one is infinite or not a number."""
        (bad,) = self._processes.sums([float(not math.isfinite(loss))])
        if not bad:
            return
        losses = self._processes.gather(loss)
        rank = next(rank for rank, value in enumerate(losses) if not math.isfinite(value))
        where = f" on rank {rank}" if len(losses) > 1 else ""
        raise LossError(
            f"the loss is {losses[rank]}{where} at step {self.steps_taken + 1} of {self.kind} "
            f"(epoch {self.position.epoch + 1}), learning rate {lr:.4g}"
        )

    def moment(self, accuracy: float | None = None, test_loss: float | None = None) -> Moment:
        """The figures after the latest step."""
        at, pruner = self.position, self.pruner
        last = max(self.steps_taken - 1, 0)
        return Moment(
            phase=self.kind,
            round=self.number,
            epoch=min(at.epoch + 1, self.phase.epochs),
            epochs=self.phase.epochs,
            step=self.steps_taken,
            steps=self.phase.epochs * self.steps_an_epoch,
            loss=at.loss / max(at.step, 1),
            lr=learning_rate(self.phase, last, self.steps_an_epoch, self._span),
            seconds=at.seconds,
            accuracy=accuracy,
            test_loss=test_loss,
            cost_left=None if pruner is None else pruner.cost_left / self._whole_cost,
            target=None if pruner is None or pruner.target is None else pruner.target / self._whole_cost,
            alpha=None if pruner is None else pruner.alpha,
            living=None if pruner is None else int(pruner.gates.alive.sum()),
            channels=None if pruner is None else self._channels,
        )


class LossError(RunError):
    """A non-finite loss."""
