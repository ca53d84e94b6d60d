"""The stages of a run, one after the other. A run can be stopped after any step and resumed.

Train the dense network if the recipe says so; then, for every target or alpha: train with gates (or choose by a criterion),
cut, and fine-tune the cut network. The next round continues from the gated weights, not from the fine-tuned ones (section 4 of
the paper).
"""

from __future__ import annotations

import copy
import math
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from gator.cost.latency.network_timer import NetworkTimer
from gator.cost.measure import measure
from gator.cost.target import parse_target
from gator.errors import RunError
from gator.files.about import About
from gator.files.save import save
from gator.gates.pruner import Pruner
from gator.graph.hypergraph import Hypergraph
from gator.graph.inputs import describe
from gator.graph.outline import outline_of
from gator.surgery.slice import flush_denormals_
from gator.training import announce
from gator.training.about_network import about_network
from gator.training.by_criterion import Choose, chosen_by_criterion
from gator.training.checkpoint import State, load_optimizer_, parameters_in_order
from gator.training.costs import cost_for, setup_for
from gator.training.evaluate import evaluate, recalibrate_
from gator.training.finish import result_of
from gator.training.folder import RunFolder
from gator.training.learning_rate import Span, spans
from gator.training.loop import Loop, LossError, optimizer_for
from gator.training.networks import Networks
from gator.training.processes import Processes
from gator.training.recipe import Phase, Recipe
from gator.training.report import Figures, Outcome, Result, figures, network_record
from gator.training.restore import restore_, state_of
from gator.training.rounds import Goal, may_go_on, next_goal, targets_of
from gator.training.run_writer import RunWriter
from gator.training.watch import Watch
from gator.training.weights import missing_weights
from gator.zoo.data import Data, load_data

_BATCHES_FOR_A_LOOK = 20  # that batch-norm statistics are computed from, to evaluate a network between epochs
_EPOCHS_PER_ROUND = 1_000_000  # more than any round has: no two rounds see the same order of examples


@dataclass(frozen=True)
class Stage:
    """A phase of the recipe in one of the rounds."""

    kind: Literal["train", "prune", "finetune"]
    round: int


class Interrupted(RunError):
    """The run was stopped by a signal, after writing a checkpoint."""


class Run:
    """The networks of a run and its position. Everything that changes is in a checkpoint (restore.py)."""

    def __init__(
        self, recipe: Recipe, processes: Processes, watch: Watch, *, resuming: bool, data: Data | None = None,
        choose: Choose | None = None,
    ) -> None:  # fmt: skip
        self.processes, self.watch = processes, watch
        self.stop_requested = False
        if (recipe.prune.criterion == "function") != (choose is not None):
            raise RunError(
                'prune.criterion = "function" and choose= go together: pass the function to gator.run or gator.resume'
            )
        self._choose = choose
        self._given = recipe
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
        self.networks = Networks(recipe, self.example, self.data.classes)
        self.recipe = self.networks.recipe
        self.resuming = resuming
        self.model = self.networks.fresh() if resuming else self.built()
        self.stage_number = 0
        self.before: Figures | None = None
        self.whole_cost = 0.0  # of the dense network, in the unit of the cost
        self.share = 1.0  # of that cost, which the network of this round has left
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
        for target in targets_of(self.recipe.prune):
            if isinstance(target, str):
                parse_target(target, 1.0, cost.unit)
        if not self.recipe.prune.epochs:
            return
        with torch.random.fork_rng():
            self.make_pruner()
        assert self.pruner is not None
        self.pruner.detach()
        self.pruner, self.whole_cost = None, 0.0

    def built(self) -> nn.Module:
        """The network as the run starts with it."""
        model = self.networks.built()
        if self.processes.rank:  # from here on every rank has random numbers of its own; the weights were drawn alike
            torch.manual_seed(self.recipe.seed + 1_000_003 * self.processes.rank)
        return model

    def go(self, folder: RunFolder) -> Result:
        self.folder, self.writer = folder, RunWriter(folder, self.recipe.run.checkpoint_seconds)
        self.writer.write(lambda: folder.write_about(self._about()))
        self.writer.write(lambda: folder.keep_recipe(self._given))
        restore_(self)
        self.watch.note(f"{self.recipe.name}: {self.recipe.model.name} on {self.data.name}; run folder {folder.path}")
        if not self.resuming and (advice := missing_weights(self.recipe)):
            self.watch.note(advice)
        started, already = time.monotonic(), self.seconds
        try:
            while (stage := self.stage) is not None:
                if self.loop is None:
                    self._begin(stage)
                while self.loop is not None and self.loop.position.epoch < self.loop.phase.epochs:
                    self.loop.epoch(self._between_steps)
                    self._end_of_epoch(stage)
                    self.seconds = already + time.monotonic() - started
                    self._save_if_due()
                self._end(stage)
                self.loop, self.stage_number = None, self.stage_number + 1
                self.seconds = already + time.monotonic() - started
                self._write_checkpoint()
            return self._finish()
        except LossError as error:
            assert stage is not None
            raise RunError(f"{error}\n  {self._after_divergence(stage)}") from error
        finally:
            folder.close()

    def _after_divergence(self, stage: Stage) -> str:
        """What to do after a non-finite loss."""
        last_good = self.writer.drop_diverged()  # all ranks stop at the same step
        phase, span = self._phase(stage)
        key = "prune" if span.before else stage.kind  # one annealing over both phases has one rate
        lower = f"gator prune --resume {self.folder.path} --set {key}.lr={phase.lr / 10:.3g}"
        return f"{last_good}. Continue from there with a smaller learning rate:\n  {lower}"

    @property
    def stage(self) -> Stage | None:
        """The stage that the run is at; None after the last."""
        number = self.stage_number - (1 if self.recipe.train.epochs else 0)
        if number < 0:
            return Stage("train", 0)
        if number % 2 == 0 and self._goal() is None:
            return None
        return Stage("finetune" if number % 2 else "prune", number // 2)

    def _goal(self) -> Goal | None:
        """The goal of the round that the run is at; the first one does not depend on the accuracy."""
        return next_goal(self.recipe.prune, self.rounds, 0.0 if self.before is None else self.before.accuracy)

    def _phase(self, stage: Stage) -> tuple[Phase, Span]:
        finetune, of_prune, of_finetune = spans(self.recipe)
        phases: dict[str, tuple[Phase, Span]] = {
            "train": (self.recipe.train, Span()),
            "prune": (self.recipe.prune, of_prune),
            "finetune": (finetune, of_finetune),
        }
        return phases[stage.kind]

    def _begin(self, stage: Stage) -> None:
        """Prepare a stage. Everything here depends on nothing but the last checkpoint."""
        recipe = self.recipe
        if stage.kind == "train":
            self.watch.note(announce.of_training(self.make_loop(stage, self.model)))
        elif stage.kind == "prune":
            goal = self._goal()
            assert goal is not None
            if stage.round == 0:
                self._save_dense()
            if not recipe.prune.epochs:
                return
            if stage.round == 0 or goal.alpha is None:
                self.model = self._start_of(goal, stage.round)
                self.make_pruner()
            assert self.pruner is not None
            if stage.round == 0:
                self._write_outline(self.pruner.graph)
            if goal.alpha is not None:
                self.pruner.alpha = goal.alpha
            loop = self.make_loop(stage, self.model, self.pruner)
            self.watch.note(announce.of_gates(loop, goal.name, self._batches_for_a_look))
        else:
            small = self._cut_network(stage)
            as_cut, _ = self._evaluate(small)
            recalibrate_(
                small, self.data.train, self.processes, batches=recipe.finetune.recalibrate,
                channels_last=recipe.run.in_channels_last,
            )  # fmt: skip
            self.accuracy_cut, _ = self._evaluate(small)
            self.accuracy_best = self.accuracy_cut
            self.watch.note(announce.of_cut(self._size_of(small), as_cut, self.accuracy_cut))
            self.watch.note(announce.of_fine_tuning(self.make_loop(stage, small)))

    @property
    def _batches_for_a_look(self) -> int:
        return min(self.recipe.finetune.recalibrate, _BATCHES_FOR_A_LOOK)

    def more_rounds(self) -> bool:
        """Whether the gated weights are needed again after the round that the run is at."""
        return may_go_on(self.recipe.prune, len(self.rounds))

    def _start_of(self, goal: Goal, number: int) -> nn.Module:
        """The network that gates are put on in a round with a target."""
        before = None if number == 0 else number - 1
        if goal.start == before:
            return self.model
        return self.networks.from_file(self.folder.dense if goal.start is None else self.folder.cut_file(goal.start))

    def _cut_network(self, stage: Stage) -> nn.Module:
        """The smaller network of this round, before fine-tuning. In a run with several rounds the next can start from it."""
        if self.pruner is None:
            return self._chosen_by_criterion()
        small = self.networks.placed(self.pruner.cut())
        self.share = self.pruner.cost_left / self.whole_cost
        if self.recipe.prune.alphas and self.more_rounds():
            return small
        self.pruner.detach()
        self.pruner = None
        if self.more_rounds():
            self.model = small
            if self.recipe.prune.max_drop is not None:
                self.writer.write(lambda: save(small, self.folder.cut_file(stage.round), about=self._about()))
            return copy.deepcopy(small)
        return small

    def _chosen_by_criterion(self) -> nn.Module:
        cost, goal = cost_for(self.recipe, self.processes.device.type), self._goal()
        assert goal is not None
        assert goal.target is not None
        dense = self.model if not self.rounds else self.networks.from_file(self.folder.dense)
        small, self.share, graph = chosen_by_criterion(
            dense, self.example, cost, goal.target, self.recipe, self.data.train, self._choose
        )
        self._write_outline(graph)
        return self.networks.placed(small)

    def _save_dense(self) -> None:
        accuracy, _ = self._evaluate(self.model, float32=True)
        self.before = figures(self.model, self.example, accuracy)
        self.writer.write(lambda: save(self.model, self.folder.dense, about=self._about(self.before)))
        self._record_network(self.model, self.before, self.folder.dense, "dense")
        self.watch.note(f"dense network: {self._size_of(self.model)}; accuracy {accuracy:.2f} %")

    def _about(self, found: Figures | None = None) -> About:
        """What belongs to a network of this run, with its figures if they are known."""
        return about_network(self.recipe, self.data, self.example, dense=self.before, figures=found)

    def _record_network(self, network: nn.Module, found: Figures, file: Path, name: str) -> None:
        record = network_record(network, self.example, found, file=file.name, name=name)
        self.writer.write(lambda: self.folder.record_network(record))

    def _write_outline(self, graph: Hypergraph) -> None:
        self.writer.write(lambda: self.folder.write_outline(outline_of(graph)))

    def _size_of(self, network: nn.Module) -> str:
        counted = measure(network, self.example)
        return f"{counted.macs:,} MACs, {counted.params:,} parameters"

    def make_pruner(self, state: dict[str, Any] | None = None) -> None:
        settings, goal = self.recipe.prune, self._goal()
        assert goal is not None
        cost, target = cost_for(self.recipe, self.processes.device.type), goal.target
        if target is not None and self.whole_cost:  # shares are those of the dense network
            target = f"{parse_target(target, self.whole_cost, cost.unit)!r} {cost.unit}"
        self.pruner = Pruner(
            self.model, self.example, cost=cost, target=target, alpha=goal.alpha,
            steps=None if target is None else max(1, round(settings.gated * settings.epochs * len(self.data.train))),
            per=settings.per, gamma=settings.gamma, weight_decay=settings.gate_weight_decay, min_width=settings.min_width,
            round_to=settings.round_to, keep=settings.keep if state is None else state["keep"], keep_class=settings.keep_class,
            state=state,
        )  # fmt: skip
        if not self.whole_cost:
            self.whole_cost, self.channels = self.pruner.whole_cost, len(self.pruner.gates)

    def make_loop(self, stage: Stage, network: nn.Module, pruner: Pruner | None = None, state: State | None = None) -> Loop:
        phase, span = self._phase(stage)
        parameters = list(network.parameters()) if state is None else parameters_in_order(state, network)
        optimizer = optimizer_for(phase, parameters)
        if state is not None:
            load_optimizer_(optimizer, state, network)
        self.loop = Loop(
            self.recipe, stage.kind, phase, stage.round, network, optimizer, self.data.train, self.processes, pruner=pruner,
            teacher=self.teacher if phase.distill else None, first_epoch=self._first_epoch(stage), span=span,
            whole_cost=self.whole_cost, channels=self.channels,
        )  # fmt: skip
        return self.loop

    def _first_epoch(self, stage: Stage) -> int:
        """The number of a stage's first epoch, on which the order of the examples depends."""
        rounds = 0 if stage.kind == "train" else 1 + stage.round
        return _EPOCHS_PER_ROUND * rounds + (self.recipe.prune.epochs if stage.kind == "finetune" else 0)

    @property
    def teacher(self) -> nn.Module:
        """The dense network in eval mode."""
        if self._teacher is None:
            self._teacher = self.networks.teacher(self.folder.dense)
        return self._teacher

    def _end_of_epoch(self, stage: Stage) -> None:
        loop = self.loop
        assert loop is not None
        self.total_steps += loop.steps_an_epoch
        self.processes.broadcast_buffers_(loop.network)
        accuracy: float | None = None
        test_loss: float | None = None
        every = self.recipe.run.evaluate_every
        if every and (loop.position.epoch + 1) % every == 0:
            accuracy, test_loss = self._evaluate(self._as_it_would_be(loop))
            self.accuracy_best = max(self.accuracy_best, accuracy)
            if not math.isfinite(test_loss):
                raise LossError(f"the test loss is {test_loss} after epoch {loop.position.epoch + 1} of {stage.kind}")
        (loss,) = (total / self.processes.count for total in self.processes.sums([loop.position.loss]))
        loop.position.loss = loss
        moment = loop.moment(accuracy, test_loss)
        if loop.pruner is not None:
            moment = replace(moment, widths=loop.pruner.living_widths())
        if stage.kind == "prune" and self.recipe.prune.shrink:
            loop.shrink()
        self.writer.write(lambda: self.folder.record(moment, self.total_steps))
        self.watch.epoch(moment)
        loop.next_epoch()

    def _as_it_would_be(self, loop: Loop) -> nn.Module:
        """The network to evaluate after an epoch: with gates on as it would be cut now, with new batch-norm statistics."""
        if loop.pruner is None:
            return loop.network
        small = self.networks.placed(loop.pruner.cut_so_far())
        recalibrate_(
            small, self.data.train, self.processes, batches=self._batches_for_a_look,
            channels_last=self.recipe.run.in_channels_last,
        )  # fmt: skip
        return small

    def _evaluate(self, network: nn.Module, *, float32: bool = False) -> tuple[float, float]:
        """Accuracy and loss on the test data, in the precision of the run or in float32."""
        channels_last = self.recipe.run.in_channels_last
        return evaluate(network, self.data.test, self.processes, channels_last=channels_last, float32=float32)

    def _end(self, stage: Stage) -> None:
        if stage.kind != "finetune":
            return
        assert self.loop is not None
        network = self.loop.network.eval()
        flush_denormals_(network)
        accuracy, _ = self._evaluate(network, float32=True)
        found = figures(network, self.example, accuracy)
        file = self.folder.round_file(stage.round)
        self.writer.write(lambda: save(network, file, about=self._about(found)))
        goal = self._goal()
        assert goal is not None
        self._record_network(network, found, file, goal.name)
        self.rounds.append(
            Outcome(
                name=goal.name,
                file=file.name,
                figures=found,
                accuracy_cut=self.accuracy_cut,
                accuracy_best=max(self.accuracy_best, accuracy),
                share=self.share,
                alpha=goal.alpha,
            )
        )

    def _finish(self) -> Result:
        """Time all networks, and write the result."""
        assert self.before is not None
        result = result_of(
            self.folder, self.networks, self.before, self.rounds, self._network_timer(), tested_on=self.data.tested_on,
            seconds=self.seconds, say=self.watch.busy,
        )  # fmt: skip
        self.writer.write(lambda: self.folder.finish(result.as_json(), str(result)))
        return result

    def _network_timer(self) -> NetworkTimer:
        setup = setup_for(self.recipe, self.processes.device.type)
        return NetworkTimer(setup, describe(self.example), self.recipe.latency.rounds)

    def _between_steps(self) -> None:
        loop, processes = self.loop, self.processes
        assert loop is not None
        self.writer.count_step()
        if processes.is_rank_zero and self.watch.wants_step():
            self.watch.step(loop.moment())
        self._save_if_due()

    def _save_if_due(self) -> None:
        """Write a checkpoint if it is time for one; stop if a signal was received."""
        processes = self.processes
        due = processes.is_rank_zero and self.writer.is_due
        stop, write = processes.sums([float(self.stop_requested), float(due)])
        if stop:
            path = self._write_checkpoint()
            raise Interrupted(f"stopped; the checkpoint is {path}. Resume with: gator prune --resume {self.folder.path}")
        if write:
            self._write_checkpoint()

    def _write_checkpoint(self) -> Path:
        return self.writer.checkpoint(self._checkpoint_number(), state_of(self))

    def _checkpoint_number(self) -> int:
        """The number of the next checkpoint, which grows with every step and every stage."""
        inside = 0 if self.loop is None else self.loop.position.step
        return self.total_steps + inside + self.stage_number
