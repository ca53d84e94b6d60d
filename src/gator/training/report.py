"""The result of a run: accuracy, multiply-adds, parameters, bytes and measured latency, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gator.cost.latency.network_timer import NetworkTimer
from gator.cost.measure import measure


@dataclass(frozen=True)
class Figures:
    """The figures of one network."""

    accuracy: float
    macs: int
    flops: int
    params: int
    bytes: int
    latency_ms: float = 0.0  # measured when the run is finished, interleaved with the other networks
    latency_spread_ms: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """One round: the figures of its fine-tuned network, and its accuracy on the way there."""

    name: str
    file: str
    figures: Figures
    accuracy_cut: float  # after the cut, with recalibrated batch norms, before fine-tuning
    accuracy_best: float  # the best epoch of fine-tuning; figures.accuracy is that of the last epoch
    share: float  # what it costs, as a share of the dense network's cost
    alpha: float | None = None


@dataclass(frozen=True)
class Result:
    """What `gator.run` and `gator.resume` return; printed, it is a table for every round.

    >>> recipe = gator.read_recipe("digits", ["train.epochs=0", "prune.epochs=1", "finetune.epochs=0", "latency.batch=1"])
    >>> result = gator.run(recipe)
    >>> result.rounds[0].file, result.rounds[0].figures.macs < result.before.macs
    ('round-1.safetensors', True)
    """

    folder: str  # the run folder
    tested_on: str  # the examples that accuracies are of
    seconds: float
    before: Figures  # of the dense network
    rounds: tuple[Outcome, ...]  # one for every target or alpha
    timed_under: str  # the conditions of the latencies: runtime, device, threads, batch
    chosen: int  # the round whose network is the result: the last, or with max_drop the smallest network within it
    why: str = ""  # with max_drop, why that one, and how much accuracy it loses

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        tables = (_table(self.before, outcome) for outcome in self.rounds)
        return "\n\n".join([*tables, *([self.why] if self.why else []), f"latency: {self.timed_under}"])

    @property
    def network(self) -> Path:
        """The file of the network that is the result, for `gator.load`."""
        return Path(self.folder) / self.rounds[self.chosen].file


def with_latencies(found: Sequence[Figures], networks: Sequence[nn.Module], timer: NetworkTimer) -> list[Figures]:
    """The figures of these networks with the mean and spread of their latencies, measured interleaved."""
    timings = timer.accurate_times([timer.prepare(network) for network in networks])
    return [replace(one, latency_ms=t.mean_ms, latency_spread_ms=t.spread_ms) for one, t in zip(found, timings, strict=True)]


def figures(network: nn.Module, one: Tensor, accuracy: float) -> Figures:
    counted = measure(network, one)
    return Figures(accuracy, counted.macs, counted.flops, counted.params, counted.bytes)


_ROWS = (
    ("accuracy %", "accuracy", ".2f"),
    ("MACs", "macs", ",d"),
    ("FLOPs", "flops", ",d"),
    ("parameters", "params", ",d"),
    ("bytes", "bytes", ",d"),
    ("latency ms", "latency_ms", ".2f"),
)


def _table(before: Figures, outcome: Outcome) -> str:
    lines = [f"{outcome.name:14}{'before':>16}{'after':>16}{'ratio':>9}"]
    for title, key, form in _ROWS:
        one, two = getattr(before, key), getattr(outcome.figures, key)
        lines.append(f"{title:14}{one:>16{form}}{two:>16{form}}{two / one if one else 1:>9.3f}")
    return "\n".join(lines)
