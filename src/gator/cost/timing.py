"""Timing on a noisy machine: candidates are interleaved, median and spread are reported, outliers are counted."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_PREEMPTED = 3.0  # times the median: no clock is that slow for a moment, the process was preempted
_FAR = 3.0  # interquartile ranges above the upper quartile, from where a round is counted as an outlier


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median over all rounds and half the interquartile range.

    `mean_ms` is the mean without rounds in which the process was preempted. Means are what is compared: under clock drift the
    means of layers add up to the mean of their network, and medians do not.
    """

    median_ms: float
    spread_ms: float
    rounds: int
    threads: int
    mean_ms: float
    outliers: int = 0  # rounds far above the rest

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
    """Time several callables interleaved, one call of each per round, so that clock drift affects all of them alike.

    The order is different in every round, because what runs after a large candidate finds the caches empty.
    """
    for _ in range(warmup):
        for run in runs:
            run()
    samples: list[list[float]] = [[] for _ in runs]
    pairs, order = list(zip(runs, samples, strict=True)), random.Random(0)
    for _ in range(rounds):
        order.shuffle(pairs)
        for run, times in pairs:
            start = clock()
            run()
            times.append(1e3 * (clock() - start))
    return tuple(_summary(times, threads or torch.get_num_threads()) for times in samples)


def rounds_worth(runs: Sequence[Callable[[], Any]], worth_ms: float, *, least: int, most: int = 50) -> int:
    """The number of rounds in which each of these runs for `worth_ms` on average, between `least` and `most`."""
    spent = sum(timing.median_ms for timing in timed(runs, rounds=1, warmup=1))
    return int(min(max(worth_ms * len(runs) / max(spent, 1e-3), least), max(least, most)))


def _summary(times: list[float], threads: int) -> Timing:
    quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    apart = quartiles[2] - quartiles[0]
    far = sum(time > quartiles[2] + _FAR * apart for time in times)
    own = [time for time in times if time <= _PREEMPTED * quartiles[1]]
    return Timing(quartiles[1], apart / 2, len(times), threads, statistics.fmean(own), far)
