"""Timing on a noisy machine: candidates are interleaved, median and spread are reported, outliers are counted.

Calls during which the process was preempted are left out. A wait is as long for a small network as for a large one, so that
comparing it by its size would leave out the waits of small networks only, and they would look faster than they are.
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

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_FAR_OFF = 3.0  # times the median: no clock is that slow for a moment, the process was waiting
_ENOUGH = 0.25  # of the rounds: the calls without preemption that every candidate must have
_FAR = 3.0  # interquartile ranges above the upper quartile, from where a round is counted as an outlier
_BUSY = 0.04  # of all processors, used by other processes: more than that shows in the times
_STAT = Path("/proc/stat")
T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median over all rounds and half the interquartile range.

    `mean_ms` is the mean. All of them are without rounds in which the process was preempted. Means are what is compared: under
    clock drift the means of layers add up to the mean of their network, and medians do not.
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


def involuntary_switches() -> int:
    """How often the threads of this process were preempted so far; always 0 on Windows, which does not count it."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(frozen=True)
class _Call:
    ms: float
    was_preempted: bool


def timed(
    runs: Sequence[Callable[[], Any]],
    *,
    rounds: int = 20,
    warmup: int = 3,
    threads: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    switches: Callable[[], int] = involuntary_switches,
) -> tuple[Timing, ...]:
    """Time several callables interleaved, one call of each per round, so that clock drift affects all of them alike.

    The order is different in every round, because what runs after a large candidate finds the caches empty.
    """
    for _ in range(warmup):
        for run in runs:
            run()
    calls: list[list[_Call]] = [[] for _ in runs]
    pairs, order = list(zip(runs, calls, strict=True)), random.Random(0)
    for _ in range(rounds):
        order.shuffle(pairs)
        for run, own in pairs:
            before, start = switches(), clock()
            run()
            own.append(_Call(1e3 * (clock() - start), switches() != before))
    return tuple(_summary(*times, threads or torch.get_num_threads()) for times in zip(_used(calls), calls, strict=True))


def _used(calls: Sequence[Sequence[_Call]]) -> list[list[float]]:
    """Milliseconds of the calls that count, per candidate.

    Under load a call that takes longer than the scheduler's time slices is always preempted. If one candidate has too few other
    calls, all candidates keep the calls with waits, which then are in proportion to their times. A round far above the others
    is left out as a whole, which leaves the proportion as it is.
    """
    own = [[call.ms for call in some if not call.was_preempted] for some in calls]
    if all(len(times) >= max(_ENOUGH * len(some), 1) for times, some in zip(own, calls, strict=True)):
        return [[ms for ms in times if ms <= _FAR_OFF * statistics.median(times)] for times in own]
    per_round = [sum(call.ms for call in some) for some in zip(*calls, strict=True)]
    most = _FAR_OFF * statistics.median(per_round)
    return [[call.ms for call, ms in zip(some, per_round, strict=True) if ms <= most] for some in calls]


def rounds_worth(runs: Sequence[Callable[[], Any]], worth_ms: float, *, least: int = 5, most: int = 50) -> int:
    """The number of rounds in which each of these runs for `worth_ms` on average, between `least` and `most`."""
    spent = sum(timing.median_ms for timing in timed(runs, rounds=1, warmup=1))
    return int(min(max(worth_ms * len(runs) / max(spent, 1e-3), least), max(least, most)))


def _summary(used: list[float], calls: Sequence[_Call], threads: int) -> Timing:
    quartiles = statistics.quantiles(used, n=4, method="inclusive") if len(used) > 1 else [used[0]] * 3
    apart = quartiles[2] - quartiles[0]
    far = sum(call.ms > quartiles[2] + _FAR * apart for call in calls)
    return Timing(quartiles[1], apart / 2, len(calls), threads, statistics.fmean(used), far)


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
