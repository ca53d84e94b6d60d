"""The reference workload: a small fixed network that is interleaved with every layer that is timed, to cancel clock drift.

A processor's speed changes for seconds at a time. Times of layers are therefore given at the speed the device had when the
reference workload was first measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import nn

from gator.cost.latency.runtimes.by_name import runtime_of
from gator.cost.latency.runtimes.run_setup import Run, Setup
from gator.cost.timing import rounds_worth, timed, undisturbed

_SPENT_MS = 100.0  # of timing on the reference workload in every session, and on every layer
_ROUNDS = 50  # of its first measurement: all later times are multiples of it
_CHANNELS, _PIXELS = 64, 28  # so that it takes about a millisecond
_BATCH = 4  # examples at most: large enough that it waits for memory as layers do, small enough to be fast


class ReferenceWorkload:
    """The reference workload under one setup."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def first_ms(self) -> float:
        """Its time, for a new table."""
        with self._setup.on():
            return undisturbed(lambda: timed([self._run], rounds=_ROUNDS))[0].mean_ms

    def times(self, runs: Sequence[Run], reference_ms: float) -> list[float]:
        """Milliseconds of these runs at the speed at which the reference workload takes `reference_ms`."""
        rounds = rounds_worth(runs, _SPENT_MS)
        repeats = max(round(_SPENT_MS / (rounds * reference_ms)), 1)  # it must be as precise as what is compared with it

        def reference() -> None:
            for _ in range(repeats):
                self._run()

        own, *others = undisturbed(lambda: timed([reference, *runs], rounds=rounds, warmup=1))
        return [other.mean_ms * repeats * reference_ms / own.mean_ms for other in others]

    @cached_property
    def _run(self) -> Run:
        """What networks are made of: 3x3, 1x1 and depthwise convolutions."""
        narrow, wide = _CHANNELS, 2 * _CHANNELS
        with torch.random.fork_rng(devices=[]):
            first = nn.Conv2d(narrow, narrow, 3, padding=1), nn.ReLU(), nn.Conv2d(narrow, wide, 1), nn.ReLU()
            last = nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.ReLU(), nn.Conv2d(wide, narrow, 1)
        inputs = torch.ones(min(self._setup.batch or 1, _BATCH), narrow, _PIXELS, _PIXELS)
        with self._setup.on():
            arguments = self._setup.placed(((inputs,), {}))
            return runtime_of(self._setup).prepare(nn.Sequential(*first, *last), arguments, self._setup)
