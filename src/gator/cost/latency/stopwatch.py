"""Networks timed side by side under one setup, and a network against the one it came from.

A machine is not as fast today as it was yesterday. What a smaller network takes is therefore measured in turns with the
network it is compared to, and said in the milliseconds of that one's first measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import distributed as dist
from torch import nn

from gator.cost.latency.quiet import undisturbed
from gator.cost.latency.runtime import runtime_of
from gator.cost.latency.setup import Setup
from gator.cost.timing import Timing, timed
from gator.graph.inputs import Inputs

Run = Callable[[], Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Stopwatch:
    """Times networks on these inputs under this setup."""

    setup: Setup
    inputs: Inputs
    rounds: int

    def prepare(self, network: nn.Module) -> Run:
        with self.setup.on():
            return runtime_of(self.setup).prepare(network, self.setup.call(self.inputs), self.setup)

    def times(self, runs: Sequence[Run], rounds: int | None = None) -> tuple[Timing, ...]:
        """Of prepared networks, in turns."""
        with self.setup.on():
            return timed(runs, rounds=rounds or self.rounds, threads=self.setup.threads)

    def reference(self, network: nn.Module) -> Reference:
        run = self.prepare(network)
        return Reference(self, run, undisturbed(lambda: self.times([run]))[0].median_ms)


@dataclass(frozen=True)
class Reference:
    """The network that others are measured against."""

    stopwatch: Stopwatch
    run: Run
    ms: float

    def measured(self, network: nn.Module) -> float:
        """Milliseconds of another network, as they would have been when this one was measured."""
        run = self.stopwatch.prepare(network)
        own, other = undisturbed(lambda: self.stopwatch.times([self.run, run]))
        return other.quick_ms * self.ms / own.quick_ms


def told_by_first(measure: Callable[[], T]) -> T:
    """What the first of several processes measured, told to the others: they must not come to different conclusions."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return measure()
    box: list[Any] = [measure() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    found: T = box[0]
    return found
