"""The stages of a run, one after the other. A run can be stopped after any step and resumed.

Train the dense network if the recipe says so; then, for the target or for every alpha: train with gates, cut, and fine-tune the
cut network. The next round continues from the gated weights, not from the fine-tuned ones (section 4 of the paper).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from gator.cost.latency.network_timer import NetworkTimer
from gator.cost.measure import measure
from gator.cost.target import parse_target
from gator.errors import FileError, RunError
from gator.files.save import read_packed, save, unpacked
from gator.gates.pruner import Pruner
from gator.graph.inputs import describe
from gator.rank_zero import on_rank_zero
from gator.surgery.slice import flush_denormals_
from gator.training.checkpoint import State, checkpoints, load_optimizer_, parameters_in_order, write_checkpoint
from gator.training.costs import cost_for, setup_for
from gator.training.evaluate import evaluate, recalibrate_
from gator.training.folder import RunFolder
from gator.training.loop import Loop, LossError, optimizer_for
from gator.training.processes import Processes
from gator.training.recipe import Phase, Recipe
from gator.training.report import Figures, Outcome, Result, figures, with_latencies
from gator.training.restore import restore_, state_of
from gator.training.watch import Watch
from gator.training.weights import with_weights
from gator.zoo.data import Data, load_data
from gator.zoo.models import build

T = TypeVar("T")
_EPOCHS_PER_STAGE = 1_000_000  # more than any stage has: no two stages see the same order of examples


@dataclass(frozen=True)
class Stage:
    """A phase of the recipe in one of the rounds."""

    kind: Literal["train", "prune", "finetune"]
    round: int


class Interrupted(RunError):
    """The run was stopped by a signal, after writing a checkpoint."""


class Run:
    """The networks of a run and its position. Everything that changes is in a checkpoint (restore.py)."""

    def __init__(self, recipe: Recipe, processes: Processes, watch: Watch, *, resuming: bool, data: Data | None = None) -> None:
        self.recipe, self.processes, self.watch = recipe, processes, watch
        self.stop_requested = False
        settings, count = recipe.data, processes.count
        if settings.batch % (max(settings.sub_batch, 1) * count):
            raise RunError(
                f"data.batch = {settings.batch} cannot be divided among {count} processes into parts of "
                f"{settings.sub_batch or 'equal size'}; change data.batch or data.sub_batch"
            )
        torch.manual_seed(recipe.seed)
        random.seed(recipe.seed)
        self.data = data or load_data(
            settings.name, folder=settings.folder or None, batch=settings.batch // count, test_batch=settings.test_batch,
            seed=recipe.seed, rank=processes.rank, world=count, augment=settings.augment, hold_back=settings.hold_back,
            workers=settings.workers, image_size=settings.image_size, download=settings.download, verify=settings.verify,
        )  # fmt: skip
        lengths = processes.gather(len(self.data.train))
        if len(set(lengths)) > 1:
            raise RunError(f"the processes have {lengths} training batches per epoch; give each the same number")
        self.example = torch.zeros(1, *(recipe.model.input or self.data.shape), device=processes.device)
        self.resuming = resuming
        self.model = self.fresh() if resuming else self.built()
        rounds = len(recipe.prune.alphas) or 1
        self.stages = [Stage("train", 0)] if recipe.train.epochs else []
        for number in range(rounds):
            self.stages += [Stage("prune", number), Stage("finetune", number)]
        self.stage = 0
        self.before: Figures | None = None
        self.rounds: list[Outcome] = []
        self.pruner: Pruner | None = None
        self.loop: Loop | None = None
        self.channels = self.total_steps = 0
        self.accuracy_cut = self.accuracy_best = 0.0
        self.seconds = 0.0
        self._teacher: nn.Module | None = None
        if not resuming and data is None:  # a dry run, which passes data, gets to the pruner soon enough
            self._try_pruner()

    def _try_pruner(self) -> None:
        """Raise errors about [prune] and [latency] now, not after the dense network has been trained."""
        self._network_timer().prepare(self.model)
        cost = cost_for(self.recipe, self.processes.device.type)
        if isinstance(self.recipe.prune.target, str):
            parse_target(self.recipe.prune.target, 1.0, cost.unit)
        with torch.random.fork_rng():
            self.make_pruner()
        assert self.pruner is not None
        self.pruner.detach()
        self.pruner = None

    def built(self) -> nn.Module:
        """A new instance of the network, with the weights that the recipe names."""
        settings = self.recipe.model
        source, _, which = settings.weights.partition(":")
        pretrained = source == "pretrained"
        model = self._new_instance(which or "DEFAULT" if pretrained else "")
        if self.processes.rank:  # from here on every rank draws noise of its own; the weights were drawn alike
            torch.manual_seed(self.recipe.seed + 1_000_003 * self.processes.rank)
        return self.placed(with_weights(model, Path(settings.weights)) if settings.weights and not pretrained else model)

    def _new_instance(self, pretrained: str = "") -> nn.Module:
        name, classes = self.recipe.model.name, self.data.classes
        return build(name, example_inputs=self.example, classes=classes, pretrained=pretrained).model

    def placed(self, network: nn.Module) -> nn.Module:
        network = network.to(self.processes.device)
        return network.to(memory_format=torch.channels_last) if self.recipe.run.channels_last else network  # type: ignore[call-overload]

    def go(self, folder: RunFolder) -> Result:
        self.folder = folder
        restore_(self)
        self._last_checkpoint, started = time.monotonic(), time.monotonic()
        already = self.seconds
        try:
            while self.stage < len(self.stages):
                stage = self.stages[self.stage]
                if self.loop is None:
                    self._begin(stage)
                assert self.loop is not None
                while self.loop.position.epoch < self.loop.phase.epochs:
                    self.loop.epoch(self._between_steps)
                    self._end_of_epoch(stage)
                    self.seconds = already + time.monotonic() - started
                    self._save_if_due()
                self._end(stage)
                self.loop, self.stage = None, self.stage + 1
                self.seconds = already + time.monotonic() - started
                self._write_checkpoint()
            return self._finish()
        except LossError as error:
            advice = f"Start again with a smaller learning rate (--set {stage.kind}.lr=...)."
            raise RunError(f"{error}\n  {self._last_good()}. {advice}") from error
        finally:
            folder.close()

    def _phase(self, stage: Stage) -> Phase:
        phases: dict[str, Phase] = {"train": self.recipe.train, "prune": self.recipe.prune, "finetune": self.recipe.finetune}
        return phases[stage.kind]

    def _begin(self, stage: Stage) -> None:
        """Prepare a stage. Everything here depends on nothing but the last checkpoint."""
        recipe = self.recipe
        if stage.kind == "train":
            self.make_loop(stage, self.model)
        elif stage.kind == "prune":
            if stage.round == 0:
                self._save_dense()
                self.make_pruner()
            assert self.pruner is not None
            if recipe.prune.alphas:
                self.pruner.alpha = recipe.prune.alphas[stage.round]
            self.make_loop(stage, self.model, self.pruner)
        else:
            assert self.pruner is not None
            small = self.placed(self.pruner.cut())
            if not self._more_rounds():
                self.pruner.detach()
                self.pruner = None
            recalibrate_(
                small, self.data.train, self.processes, batches=recipe.finetune.recalibrate,
                channels_last=recipe.run.channels_last,
            )  # fmt: skip
            self.accuracy_cut, _ = self._evaluate(small)
            self.accuracy_best = self.accuracy_cut
            self.watch.note(f"cut to {self._size_of(small)}; accuracy {self.accuracy_cut:.2f} % before fine-tuning")
            self.make_loop(stage, small)

    def _more_rounds(self) -> bool:
        return any(later.kind == "prune" for later in self.stages[self.stage + 1 :])

    def _save_dense(self) -> None:
        self._write(lambda: save(self.model, self.folder.dense))
        accuracy, _ = self._evaluate(self.model)
        self.before = figures(self.model, self.example, accuracy)
        self.watch.note(f"dense network: {self._size_of(self.model)}; accuracy {accuracy:.2f} %")

    def _size_of(self, network: nn.Module) -> str:
        counted = measure(network, self.example)
        return f"{counted.macs:,} MACs, {counted.params:,} parameters"

    def make_pruner(self, state: dict[str, Any] | None = None) -> None:
        settings = self.recipe.prune
        self.pruner = Pruner(
            self.model, self.example, cost=cost_for(self.recipe, self.processes.device.type), target=settings.target,
            alpha=settings.alphas[0] if settings.alphas else None,
            steps=None if settings.target is None else settings.epochs * len(self.data.train),
            per=settings.per, gamma=settings.gamma, weight_decay=settings.gate_weight_decay, min_width=settings.min_width,
            round_to=settings.round_to, keep=settings.keep if state is None else state["keep"], state=state,
        )  # fmt: skip
        if state is None:
            self.channels = len(self.pruner.gates)

    def make_loop(self, stage: Stage, network: nn.Module, pruner: Pruner | None = None, state: State | None = None) -> None:
        phase = self._phase(stage)
        parameters = list(network.parameters()) if state is None else parameters_in_order(state, network)
        optimizer = optimizer_for(phase, parameters)
        if state is not None:
            load_optimizer_(optimizer, state, network)
        self.loop = Loop(
            self.recipe, stage.kind, phase, stage.round, network, optimizer, self.data.train, self.processes, pruner=pruner,
            teacher=self.teacher if phase.distill else None, first_epoch=_EPOCHS_PER_STAGE * (1 + self.stage),
            channels=self.channels,
        )  # fmt: skip

    @property
    def teacher(self) -> nn.Module:
        """The dense network in eval mode."""
        if self._teacher is None:
            self._teacher = self._from_file(self.folder.dense).requires_grad_(False)
        return self._teacher

    def fresh(self) -> nn.Module:
        with torch.random.fork_rng():
            return self._new_instance()

    def _end_of_epoch(self, stage: Stage) -> None:
        loop = self.loop
        assert loop is not None
        self.total_steps += loop.steps_an_epoch
        self.processes.broadcast_buffers_(loop.network)
        accuracy, test_loss = self._evaluate(loop.network)
        self.accuracy_best = max(self.accuracy_best, accuracy)
        if not math.isfinite(test_loss):
            raise LossError(f"the test loss is {test_loss} after epoch {loop.position.epoch + 1} of {stage.kind}")
        (loss,) = (total / self.processes.count for total in self.processes.sums([loop.position.loss]))
        loop.position.loss = loss
        moment = loop.moment(accuracy, test_loss)
        if stage.kind == "prune" and self.recipe.prune.shrink:
            loop.shrink()
        self._write(lambda: self.folder.record(moment, self.total_steps))
        self.watch.epoch(moment)
        loop.next_epoch()

    def _evaluate(self, network: nn.Module) -> tuple[float, float]:
        return evaluate(network, self.data.test, self.processes, channels_last=self.recipe.run.channels_last)

    def _end(self, stage: Stage) -> None:
        if stage.kind != "finetune":
            return
        assert self.loop is not None
        network = self.loop.network.eval()
        flush_denormals_(network)
        accuracy, _ = self._evaluate(network)
        file = self.folder.round_file(stage.round)
        self._write(lambda: save(network, file))
        alphas = self.recipe.prune.alphas
        self.rounds.append(
            Outcome(
                name=f"alpha {alphas[stage.round]:g}" if alphas else f"target {self.recipe.prune.target}",
                file=file.name,
                figures=figures(network, self.example, accuracy),
                accuracy_cut=self.accuracy_cut,
                accuracy_best=max(self.accuracy_best, accuracy),
                alpha=alphas[stage.round] if alphas else None,
            )
        )

    def _finish(self) -> Result:
        """Measure the latencies of all networks, interleaved and on rank 0, and write the result."""
        assert self.before is not None
        timer = self._network_timer()
        networks = [self._from_file(self.folder.dense), *(self._from_file(self.folder.path / o.file) for o in self.rounds)]
        found = [self.before, *(outcome.figures for outcome in self.rounds)]
        before, *after = on_rank_zero(lambda: with_latencies(found, networks, timer))
        rounds = tuple(replace(outcome, figures=one) for outcome, one in zip(self.rounds, after, strict=True))
        result = Result(str(self.folder.path), self.data.tested_on, round(self.seconds, 1), before, rounds, timer.conditions)
        self._write(lambda: self.folder.finish(result.as_json(), str(result)))
        return result

    def _network_timer(self) -> NetworkTimer:
        setup = setup_for(self.recipe, self.processes.device.type)
        return NetworkTimer(setup, describe(self.example), self.recipe.latency.rounds)

    def _from_file(self, path: Path) -> nn.Module:
        tensors, content = read_packed(path)
        return self.placed(unpacked(tensors, content, self.fresh(), path)).eval()

    def _between_steps(self) -> None:
        loop, processes = self.loop, self.processes
        assert loop is not None
        if processes.is_rank_zero and self.watch.wants_step():
            self.watch.step(loop.moment())
        self._save_if_due()

    def _save_if_due(self) -> None:
        """Write a checkpoint if it is time for one; stop if a signal was received."""
        processes = self.processes
        due = processes.is_rank_zero and time.monotonic() - self._last_checkpoint >= self.recipe.run.checkpoint_seconds
        stop, write = processes.sums([float(self.stop_requested), float(due)])
        if stop:
            path = self._write_checkpoint()
            raise Interrupted(f"stopped; the checkpoint is {path}. Resume with: gator prune --resume {self.folder.path}")
        if write:
            self._write_checkpoint()

    def _write_checkpoint(self) -> Path:
        state = state_of(self)
        path = self._write(lambda: write_checkpoint(self.folder.checkpoints, self._checkpoint_number(), state))
        self._last_checkpoint = time.monotonic()
        return path

    def _write(self, write: Callable[[], T]) -> T:
        """Write something on rank 0; an error says how to resume."""
        try:
            return on_rank_zero(write)
        except (FileError, OSError) as error:
            raise RunError(
                f"the run folder could not be written: {error}\n"
                f"  {self._last_good()}. Free some disk space, then resume with: gator prune --resume {self.folder.path}"
            ) from error

    def _last_good(self) -> str:
        found = checkpoints(self.folder.checkpoints)
        return f"The last good checkpoint is {found[-1]}" if found else "There is no checkpoint yet"

    def _checkpoint_number(self) -> int:
        """The number of the next checkpoint, which grows with every step and every stage."""
        inside = 0 if self.loop is None else self.loop.position.step
        return self.total_steps + inside + self.stage
