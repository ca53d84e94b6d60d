"""Timing on a noisy machine: candidates are interleaved, median and spread are reported, outliers are counted.

A measurement during which other processes were busy is repeated. Only Linux reports their load; elsewhere the first one counts.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

_PREEMPTED = 3.0  # times the median: no clock is that slow for a moment, the process was preempted
_FAR = 3.0  # interquartile ranges above the upper quartile, from where a round is counted as an outlier
_BUSY = 0.04  # of all processors, used by other processes: more than that shows in the times
_STAT = Path("/proc/stat")
T = TypeVar("T")


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


def rounds_worth(runs: Sequence[Callable[[], Any]], worth_ms: float, *, least: int = 5, most: int = 50) -> int:
    """The number of rounds in which each of these runs for `worth_ms` on average, between `least` and `most`."""
    spent = sum(timing.median_ms for timing in timed(runs, rounds=1, warmup=1))
    return int(min(max(worth_ms * len(runs) / max(spent, 1e-3), least), max(least, most)))


def _summary(times: list[float], threads: int) -> Timing:
    quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    apart = quartiles[2] - quartiles[0]
    far = sum(time > quartiles[2] + _FAR * apart for time in times)
    own = [time for time in times if time <= _PREEMPTED * quartiles[1]]
    return Timing(quartiles[1], apart / 2, len(times), threads, statistics.fmean(own), far)


def undisturbed(measure: Callable[[], T], *, tries: int = 3) -> T:
    """The first result of `measure` while other processes were idle; after so many tries, that with the least activity."""
    best: tuple[float, T] | None = None
    for _ in range(tries):
        before, own, start = _busy_seconds(), time.process_time(), time.perf_counter()
        result = measure()
        after, seconds = _busy_seconds(), time.perf_counter() - start
        if before is None or after is None:
            return result
        others = (after - before - (time.process_time() - own)) / max(seconds, 0.05)
        if best is None or others < best[0]:
            best = (others, result)
        if others <= _BUSY * (os.cpu_count() or 1):
            break
    assert best is not None
    return best[1]


def _busy_seconds() -> float | None:
    """Processor time that all processes have used since the machine was started, with the time that its host took from it."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, _STAT.read_text().splitlines()[0].split()[1:9])
    except (OSError, ValueError, IndexError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
