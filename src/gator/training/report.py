"""The table at the end of a run: accuracy, multiply-adds, parameters, bytes and measured latency, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gator.cost.measure import measure
from gator.cost.timing import timed


@dataclass(frozen=True)
class Figures:
    """What one network has."""

    accuracy: float
    macs: int
    flops: int
    params: int
    bytes: int
    latency_ms: float
    latency_spread_ms: float


@dataclass(frozen=True)
class Outcome:
    """One round: the figures of its network, and how it came about."""

    name: str
    file: str
    figures: Figures
    accuracy_cut: float  # right after the cut and the new batch-norm statistics
    accuracy_best: float  # of all epochs since the cut; figures.accuracy is that of the last
    alpha: float | None = None


@dataclass(frozen=True)
class Result:
    """A whole run."""

    folder: str
    tested_on: str
    seconds: float
    before: Figures
    rounds: tuple[Outcome, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n\n".join(_table(self.before, outcome) for outcome in self.rounds)


def latencies(networks: Sequence[nn.Module], example: Tensor, rounds: int) -> list[tuple[float, float]]:
    """Median and spread of every network in milliseconds, all of them taking turns."""
    modes = [network.training for network in networks]
    try:
        for network in networks:
            network.eval()
        with torch.inference_mode():
            found = timed([partial(_finished, network, example) for network in networks], rounds=rounds)
    finally:
        for network, mode in zip(networks, modes, strict=True):
            network.train(mode)
    return [(timing.median_ms, timing.spread_ms) for timing in found]


def _finished(network: nn.Module, example: Tensor) -> None:
    network(example)
    if example.is_cuda:
        torch.cuda.synchronize()  # the call comes back before the work is done


def figures(network: nn.Module, one: Tensor, accuracy: float, latency: tuple[float, float]) -> Figures:
    counted = measure(network, one)
    return Figures(accuracy, counted.macs, counted.flops, counted.params, counted.bytes, *latency)


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
