"""The reference workload: a small fixed network that is interleaved with every layer that is timed, to cancel clock drift.

A processor's speed changes for seconds at a time. Times are therefore reported at the speed the device had when the reference
workload was first measured. Two more fixed workloads tell what a call of the runtime costs, however many layers it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import nn

from gator.cost.latency.log import Log, WorkloadTime
from gator.cost.latency.quiet import undisturbed
from gator.cost.latency.runtime import runtime_of
from gator.cost.latency.setup import Setup
from gator.cost.latency.stopwatch import Run
from gator.cost.timing import timed

SPENT_MS = 100.0  # of timing on the reference workload in every session, and on every layer
_ROUNDS = 50  # for the fixed workloads: every other time depends on them
_CHANNELS, _PIXELS = 64, 28  # so that the workload takes about a millisecond
_BATCH = 4  # examples at most: large enough that it waits for memory as layers do, small enough to be fast
_REFERENCE, _LAYERS = "reference", (1, 6)


class ReferenceWorkload:
    """The reference workload under one setup."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def first_times(self) -> list[WorkloadTime]:
        """The fixed workloads, measured for the log of a new table."""
        with self._setup.on():
            ms = undisturbed(lambda: timed([self._run], rounds=_ROUNDS))[0].mean_ms
            chains = [
                self._prepared(lambda: [nn.Conv2d(_CHANNELS, _CHANNELS, 1) for _ in range(count)], 1) for count in _LAYERS
            ]
            times = self.times(chains, _ROUNDS, ms)
        found = [WorkloadTime(_chain(count), one) for count, one in zip(_LAYERS, times, strict=True)]
        return [WorkloadTime(_REFERENCE, ms), *found]

    def times(self, runs: Sequence[Run], rounds: int, reference_ms: float) -> list[float]:
        """Milliseconds of these runs at the speed at which the reference workload takes `reference_ms`."""
        repeats = max(round(SPENT_MS / (rounds * reference_ms)), 1)  # it must be as precise as what is compared with it

        def reference() -> None:
            for _ in range(repeats):
                self._run()

        own, *others = undisturbed(lambda: timed([reference, *runs], rounds=rounds, warmup=1))
        return [other.mean_ms * repeats * reference_ms / own.mean_ms for other in others]

    @cached_property
    def _run(self) -> Run:
        return self._prepared(_reference_layers, min(self._setup.batch or 1, _BATCH))

    def _prepared(self, layers: Callable[[], list[nn.Module]], batch: int) -> Run:
        with torch.random.fork_rng(devices=[]):
            network = nn.Sequential(*layers())
        call = self._setup.placed(((torch.ones(batch, _CHANNELS, _PIXELS, _PIXELS),), {}))
        with self._setup.on():
            return runtime_of(self._setup).prepare(network, call, self._setup)


def _reference_layers() -> list[nn.Module]:
    """What networks are made of: 3x3, 1x1 and depthwise convolutions."""
    narrow, wide = _CHANNELS, 2 * _CHANNELS
    first = nn.Conv2d(narrow, narrow, 3, padding=1), nn.ReLU(), nn.Conv2d(narrow, wide, 1), nn.ReLU()
    return [*first, nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.ReLU(), nn.Conv2d(wide, narrow, 1)]


def reference_ms_of(log: Log) -> float | None:
    """The first time of the reference workload; None if the log has none."""
    return next((each.ms for each in log if isinstance(each, WorkloadTime) and each.workload == _REFERENCE), None)


def call_ms_of(log: Log) -> float:
    """What comes with every call of the runtime (waking threads, passing tensors): a layer timed alone includes it once."""
    times = {each.workload: each.ms for each in log if isinstance(each, WorkloadTime)}
    few, many = _LAYERS
    return max((many * times[_chain(few)] - few * times[_chain(many)]) / (many - few), 0.0)


def _chain(layers: int) -> str:
    return f"{layers} layer{'' if layers == 1 else 's'}"
