"""Networks timed under one setup, interleaved, and a network compared with the one it was cut from.

A machine's speed changes from day to day. So a smaller network is measured interleaved with its baseline, and its time is given
at the speed the machine had when the baseline was first measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from gator.cost.latency.runtimes.by_name import runtime_of
from gator.cost.latency.runtimes.run_setup import Run, Setup
from gator.cost.timing import Timing, rounds_worth, timed, undisturbed
from gator.graph.inputs import Inputs, TensorSpec
from gator.rank_zero import on_rank_zero

TOGETHER = 3  # networks that are interleaved with the unpruned one: beside 30 others PyTorch took up to 60 % longer
_ACCURATE_MS, _ACCURATE_ROUNDS = 10_000.0, 200  # of timing at most on a finished network: it decides whether a budget is met
_TRIAL = 5  # rounds


@dataclass(frozen=True)
class NetworkTimer:
    """Times networks on these inputs under this setup."""

    setup: Setup
    inputs: Inputs
    rounds: int = 20

    @property
    def conditions(self) -> str:
        """What the times were measured under, for people."""
        return f"{replace(self.setup, batch=self.setup.batch or self.inputs.batch)} of {self.shapes}"

    @property
    def shapes(self) -> str:
        """The shapes of one example."""
        return ", ".join("x".join(map(str, leaf.shape[1:])) for leaf in self.inputs.leaves if isinstance(leaf, TensorSpec))

    @property
    def is_trial(self) -> bool:
        """Whether so few rounds are run that the times mean little, as in a dry run."""
        return self.rounds < _TRIAL

    def prepare(self, network: nn.Module) -> Run:
        """A function that runs the network once."""
        with self.setup.on():
            return runtime_of(self.setup).prepare(network, self.setup.arguments(self.inputs), self.setup)

    def times(self, runs: Sequence[Run], rounds: int | None = None) -> tuple[Timing, ...]:
        """Times of prepared networks, interleaved."""
        with self.setup.on():
            return timed(runs, rounds=rounds or self.rounds, threads=self.setup.threads)

    def accurate_times(self, runs: Sequence[Run]) -> tuple[Timing, ...]:
        """The same with many rounds, repeated if other processes were busy; fewer than 5 rounds are left as they are."""
        if self.is_trial:
            return self.times(runs)
        with self.setup.on():
            rounds = rounds_worth(runs, _ACCURATE_MS, least=self.rounds, most=_ACCURATE_ROUNDS)
        return undisturbed(lambda: self.times(runs, rounds))


@dataclass(frozen=True)
class Baseline:
    """The unpruned network, which others are compared with, and its time when it was first measured."""

    timer: NetworkTimer
    run: Run
    ms: float

    @staticmethod
    def of(network: nn.Module, timer: NetworkTimer, ms: float | None) -> Baseline:
        """With `ms` if the network was measured before, else it is measured now."""
        run = timer.prepare(network)
        return Baseline(timer, run, on_rank_zero(lambda: timer.accurate_times([run]))[0].mean_ms if ms is None else ms)

    def measure(self, network: nn.Module) -> float:
        """Milliseconds of another network, at the speed the machine had when the baseline took `ms`."""
        own, other = on_rank_zero(lambda: self.timer.accurate_times([self.run, self.timer.prepare(network)]))
        return other.mean_ms * self.ms / own.mean_ms
