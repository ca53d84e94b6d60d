"""Timing that survives a noisy machine: candidates take turns, medians and spread are reported, outliers are counted."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_ANOTHER = 3.0  # times the median: no processor is that slow for a moment, somebody else was at work
_FAR = 3.0  # distances between the quartiles; what lies further above them is counted as an outlier


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median over all rounds and half the distance between the quartiles.

    `mean_ms` is the mean of rounds that are not several times as long as the median. Means of layers add up to that of a
    network, as no median or quartile does where a processor is now faster, now slower: so they are what is compared.
    """

    median_ms: float
    spread_ms: float
    rounds: int
    threads: int
    mean_ms: float
    outliers: int = 0  # rounds far above the rest; the median does not mind a few

    def __str__(self) -> str:
        text = f"{self.median_ms:.3g} ms +- {self.spread_ms:.2g} ({self.threads} thread{'' if self.threads == 1 else 's'}"
        return text + (f", {self.outliers} of {self.rounds} rounds far off)" if self.outliers else ")")


def timed(
    runs: Sequence[Callable[[], Any]],
    *,
    rounds: int = 20,
    warmup: int = 3,
    threads: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timing, ...]:
    """Time several callables in one go, one call of each a round, so that a slow moment hits all of them.

    Every round has an order of its own: what runs next to something large finds the caches emptied.
    """
    for _ in range(warmup):
        for run in runs:
            run()
    samples: list[list[float]] = [[] for _ in runs]
    turns, order = list(zip(runs, samples, strict=True)), random.Random(0)
    for _ in range(rounds):
        order.shuffle(turns)
        for run, times in turns:
            start = clock()
            run()
            times.append(1e3 * (clock() - start))
    return tuple(_summary(times, threads or torch.get_num_threads()) for times in samples)


def rounds_worth(runs: Sequence[Callable[[], Any]], worth_ms: float, *, least: int, most: int = 50) -> int:
    """How often to time each of these to spend so long on one: more often if they are quick."""
    spent = sum(timing.median_ms for timing in timed(runs, rounds=1, warmup=1))
    return int(min(max(worth_ms * len(runs) / max(spent, 1e-3), least), max(least, most)))


def _summary(times: list[float], threads: int) -> Timing:
    quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    apart = quartiles[2] - quartiles[0]
    far = sum(time > quartiles[2] + _FAR * apart for time in times)
    own = [time for time in times if time <= _ANOTHER * quartiles[1]]
    return Timing(quartiles[1], apart / 2, len(times), threads, statistics.fmean(own), far)
