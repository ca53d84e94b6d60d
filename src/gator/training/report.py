"""The result of a run: accuracy, multiply-adds, parameters, bytes and measured latency, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gator.cost.measure import LayerCost, layer_costs, measure
from gator.surgery.widths_left import widths_of_network
from gator.training.final_times import RuntimeTimes


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
    other_runtimes_ms: Mapping[str, float] = field(default_factory=dict)  # the same on other runtimes that are installed


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

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Outcome:
        return cls(**{**saved, "figures": Figures(**saved["figures"])})


@dataclass(frozen=True)
class NetworkRecord:
    """What a run writes about a network as soon as it is finished: its figures without latency, widths, and every layer."""

    file: str
    name: str
    figures: Figures
    widths: Mapping[str, int]  # of the edges of the dense network, as far as it was cut
    layers: tuple[LayerCost, ...]


@dataclass(frozen=True)
class Result:
    """What `gator.run` and `gator.resume` return; printed, it is a table for every round.

    >>> recipe = gator.read_recipe("digits", ["train.epochs=0", "prune.epochs=1", "finetune.epochs=0", "latency.batch=1"])
    >>> result = gator.run(recipe)
    >>> result.rounds[0].file, result.rounds[0].figures.macs < result.before.macs
    ('round-1.safetensors', True)
    """

    folder: str  # the run folder
    tested_on: str  # the examples on which the accuracies were measured
    seconds: float
    before: Figures  # of the dense network
    rounds: tuple[Outcome, ...]  # one for every target or alpha
    timed_under: str  # the conditions of the latencies: runtime, device, threads, batch
    chosen: int  # the round whose network is the result: the last, or with max_drop the smallest network within it
    why: str = ""  # with max_drop, why that one, and how much accuracy it loses
    missed: str = ""  # of a latency budget that was met during the run, but not by the finished network
    slower: tuple[str, ...] = ()  # a sentence for every runtime on which a pruned network is slower than the dense one

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Result:
        rounds = tuple(Outcome.from_json(outcome) for outcome in saved["rounds"])
        return cls(**{**saved, "before": Figures(**saved["before"]), "rounds": rounds, "slower": tuple(saved["slower"])})

    def __str__(self) -> str:
        tables = (_table(self.before, outcome) for outcome in self.rounds)
        return "\n\n".join([*tables, *filter(None, (self.why, self.missed)), *self.slower, f"latency: {self.timed_under}"])

    @property
    def network(self) -> Path:
        """The file of the network that is the result, for `gator.load`."""
        return Path(self.folder) / self.rounds[self.chosen].file


def with_latencies(found: Sequence[Figures], times: Sequence[RuntimeTimes]) -> list[Figures]:
    """The figures of networks with their latencies; the first of `times` is the runtime of the recipe."""
    main, *others = times
    return [
        replace(
            one, latency_ms=main.timings[index].mean_ms, latency_spread_ms=main.timings[index].spread_ms,
            other_runtimes_ms={other.runtime: other.timings[index].mean_ms for other in others},
        )
        for index, one in enumerate(found)
    ]  # fmt: skip


def figures(network: nn.Module, one: Tensor, accuracy: float) -> Figures:
    counted = measure(network, one)
    return Figures(accuracy, counted.macs, counted.flops, counted.params, counted.bytes)


def network_record(network: nn.Module, one: Tensor, figures: Figures, *, file: str, name: str) -> NetworkRecord:
    return NetworkRecord(file, name, figures, widths_of_network(network), layer_costs(network, one))


_ROWS = (
    ("accuracy %", "accuracy", ".2f"),
    ("MACs", "macs", ",d"),
    ("FLOPs", "flops", ",d"),
    ("parameters", "params", ",d"),
    ("bytes", "bytes", ",d"),
)


def _table(before: Figures, outcome: Outcome) -> str:
    lines = [f"{outcome.name:14}{'before':>16}{'after':>16}{'ratio':>9}"]
    for title, key, form in _ROWS:
        one, two = getattr(before, key), getattr(outcome.figures, key)
        lines.append(f"{title:14}{one:>16{form}}{two:>16{form}}{two / one if one else 1:>9.3f}")
    times = [("latency ms", before.latency_ms, outcome.figures.latency_ms)]
    others = outcome.figures.other_runtimes_ms
    times += [(f"  {name}", before.other_runtimes_ms[name], ms) for name, ms in others.items()]
    lines += [f"{title:14}{_ms(one):>16}{_ms(two):>16}{two / one if one else 1:>9.3f}" for title, one, two in times]
    return "\n".join(lines)


def _ms(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"
