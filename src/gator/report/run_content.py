"""Everything that a report shows about one run, as plain data and what follows from it; nothing here knows how it is drawn."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gator.cost.measure import LayerCost
from gator.graph.outline import Outline
from gator.report.removed_blocks import removed_blocks
from gator.training.recipe import Recipe


@dataclass(frozen=True)
class Epoch:
    """One epoch of a run; `number` counts from 1 over all phases."""

    number: int
    phase: str  # train, prune, finetune
    round: int
    loss: float
    lr: float
    cost_left: float  # as a share of the dense network's cost
    accuracy: float | None
    test_loss: float | None
    target: float | None  # as a share
    widths: tuple[int, ...] | None  # while gates are on: living channels of every edge


@dataclass(frozen=True)
class Span:
    """A phase of the run: the numbers of its first and last epoch."""

    phase: str
    round: int
    first: int
    last: int


@dataclass(frozen=True)
class NetworkFacts:
    """The figures of the dense network or of the network of one round."""

    name: str
    file: str
    accuracy: float
    macs: int
    params: int
    bytes: int
    latency_ms: Mapping[str, float]  # by runtime; empty until the run is finished
    widths: Mapping[str, int]  # of the edges that were cut
    layers: tuple[LayerCost, ...]  # empty in a folder of an older version
    accuracy_cut: float | None = None  # before fine-tuning
    accuracy_best: float | None = None


@dataclass(frozen=True)
class EdgeFacts:
    """An edge before and after: of the dense network, and of the network that is the result."""

    name: str
    before: int
    after: int | None  # None as long as no network is finished
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    highway: bool
    macs_before: int  # of the layers that write it
    macs_after: int | None


@dataclass(frozen=True)
class LayerFacts:
    """A layer before and after."""

    name: str
    macs_before: int
    macs_after: int | None
    params_before: int
    params_after: int | None


@dataclass(frozen=True)
class RunContent:
    """One run. `run_labels` names several."""

    folder: str
    recipe: Recipe
    recipe_text: str
    environment: Mapping[str, Any]
    epochs: tuple[Epoch, ...]
    planned_epochs: Mapping[str, int]  # of every phase, as far as the run has come
    dense: NetworkFacts | None  # None if the run was stopped before
    rounds: tuple[NetworkFacts, ...]
    chosen: int | None  # the round whose network is the result; of an unfinished run the last that is there
    finished: bool
    outline: Outline | None
    tested_on: str = ""
    seconds: float | None = None
    timed_under: str = ""
    why: str = ""
    slower: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def result(self) -> NetworkFacts | None:
        return None if self.chosen is None else self.rounds[self.chosen]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        found: list[Span] = []
        for epoch in self.epochs:
            if found and (found[-1].phase, found[-1].round) == (epoch.phase, epoch.round):
                found[-1] = Span(epoch.phase, epoch.round, found[-1].first, epoch.number)
            else:
                found.append(Span(epoch.phase, epoch.round, epoch.number, epoch.number))
        return tuple(found)

    @cached_property
    def edges(self) -> tuple[EdgeFacts, ...]:
        if self.outline is None:
            return ()
        before = {} if self.dense is None else {layer.name: layer.macs for layer in self.dense.layers}
        result = self.result
        after = {} if result is None else {layer.name: layer.macs for layer in result.layers}
        return tuple(
            EdgeFacts(
                edge.name, edge.width, None if result is None else result.widths.get(edge.name, edge.width), edge.producers,
                edge.consumers, edge.highway, sum(before.get(layer, 0) for layer in edge.producers),
                None if result is None or not after else sum(after.get(layer, 0) for layer in edge.producers),
            )
            for edge in self.outline.edges
        )  # fmt: skip

    @cached_property
    def layers(self) -> tuple[LayerFacts, ...]:
        """The layers of the dense network in the order of forward."""
        if self.dense is None:
            return ()
        result = self.result
        after = None if result is None or not result.layers else {layer.name: layer for layer in result.layers}
        none = LayerCost("", 0, 0)
        return tuple(
            LayerFacts(
                layer.name, layer.macs, None if after is None else after.get(layer.name, none).macs,
                layer.params, None if after is None else after.get(layer.name, none).params,
            )
            for layer in self.dense.layers
        )  # fmt: skip

    @property
    def removed(self) -> tuple[str, ...]:
        """Blocks and layers of which nothing is left, the largest that contain nothing else."""
        gone = {layer.name for layer in self.layers if layer.macs_before and layer.macs_after == 0}
        return removed_blocks([layer.name for layer in self.layers if layer.macs_before], gone)

    @property
    def stopped_at(self) -> str:
        """How far an unfinished run is: "epoch 7 of 15 with gates, in round 1"."""
        if not self.epochs:
            return "no epoch"
        span = self.spans[-1]
        done = span.last - span.first + 1
        epochs = f"epoch {done} of {self.planned_epochs.get(span.phase, done)}"
        where = {"train": "of training the dense network", "prune": "with gates", "finetune": "of fine-tuning"}[span.phase]
        return f"{epochs} {where}" + ("" if span.phase == "train" else f", in round {span.round + 1}")

    @property
    def started_with(self) -> str:
        """The command that started the run; empty if it was not the command line."""
        command = [str(word) for word in self.environment.get("command", ())]
        if not command or not (command[0].endswith(("/gator", "gator.exe", "gator/__main__.py")) or command[0] == "gator"):
            return ""
        return " ".join(shlex.quote(word) for word in ["gator", *command[1:]])

    @property
    def repeated_with(self) -> str:
        return f"gator prune {shlex.quote(self.folder + '/recipe.toml')}"


def run_labels(runs: Sequence[RunContent]) -> list[str]:
    """A name for every run: that of its recipe or, if two have the same, that of the folder."""
    names = [run.name for run in runs]
    return [run.folder if names.count(run.name) > 1 else run.name for run in runs]
