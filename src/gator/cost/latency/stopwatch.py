"""Networks timed side by side under one setup, and a network against the one it came from.

A machine is not as fast today as it was yesterday. What a smaller network takes is therefore measured in turns with the
network it is compared to, and said in the milliseconds of that one's first measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from gator.cost.latency.quiet import undisturbed
from gator.cost.latency.runtime import runtime_of
from gator.cost.latency.setup import Setup
from gator.cost.timing import Timing, rounds_worth, timed
from gator.graph.inputs import Inputs, TensorSpec
from gator.rank_zero import on_rank_zero

_LAST_WORD_MS, _LAST_WORD_ROUNDS = 10_000.0, 200  # what a finished network is worth: whether a budget is met hangs on it
Run = Callable[[], Any]


@dataclass(frozen=True)
class Stopwatch:
    """Times networks on these inputs under this setup."""

    setup: Setup
    inputs: Inputs
    rounds: int

    @property
    def conditions(self) -> str:
        """What its times are times of, for people."""
        return f"{replace(self.setup, batch=self.setup.batch or self.inputs.batch)} of {self.shapes}"

    @property
    def shapes(self) -> str:
        """Of one example."""
        return ", ".join("x".join(map(str, leaf.shape[1:])) for leaf in self.inputs.leaves if isinstance(leaf, TensorSpec))

    def prepare(self, network: nn.Module) -> Run:
        with self.setup.on():
            return runtime_of(self.setup).prepare(network, self.setup.call(self.inputs), self.setup)

    def times(self, runs: Sequence[Run], rounds: int | None = None) -> tuple[Timing, ...]:
        """Of prepared networks, in turns."""
        with self.setup.on():
            return timed(runs, rounds=rounds or self.rounds, threads=self.setup.threads)

    def certain_times(self, runs: Sequence[Run]) -> tuple[Timing, ...]:
        """The same, as often as what hangs on them is worth, and while nobody else works."""
        with self.setup.on():
            rounds = rounds_worth(runs, _LAST_WORD_MS, least=self.rounds, most=_LAST_WORD_ROUNDS)
        return undisturbed(lambda: self.times(runs, rounds))

    def reference(self, network: nn.Module, ms: float | None = None) -> Reference:
        """This network to measure others against; `ms` is what it took before, if that is known."""
        run = self.prepare(network)
        return Reference(self, run, on_rank_zero(lambda: self.certain_times([run]))[0].mean_ms if ms is None else ms)


@dataclass(frozen=True)
class Reference:
    """The network that others are measured against."""

    stopwatch: Stopwatch
    run: Run
    ms: float

    def measured(self, network: nn.Module) -> float:
        """Milliseconds of another network, as they would have been when this one was measured."""
        own, other = on_rank_zero(lambda: self.stopwatch.certain_times([self.run, self.stopwatch.prepare(network)]))
        return other.mean_ms * self.ms / own.mean_ms
