"""Timing that survives a noisy machine: candidates take turns, medians and spread are reported."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median over all rounds and half the distance between the quartiles."""

    median_ms: float
    spread_ms: float
    rounds: int
    threads: int


def timed(runs: Sequence[Callable[[], Any]], *, rounds: int = 20, warmup: int = 3) -> tuple[Timing, ...]:
    """Time several callables in one go, one call of each a round, so that a slow moment hits all of them."""
    for _ in range(warmup):
        for run in runs:
            run()
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, times in zip(runs, samples, strict=True):
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
    return tuple(_summary(times) for times in samples)


def _summary(times: list[float]) -> Timing:
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return Timing(statistics.median(times), (quartiles[2] - quartiles[0]) / 2, len(times), torch.get_num_threads())
