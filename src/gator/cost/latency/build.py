"""Building a table for a network: steps, then layers over the grid, then whole networks; saved as it goes.

Whatever is in the table already is not timed again, so a build that was stopped goes on where it was; steps are
written down when all of them are known.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from gator.cost.latency.calibrate import applied, fitted, mape, spearman
from gator.cost.latency.draws import drawn_widths, kept_of
from gator.cost.latency.grid import Entry
from gator.cost.latency.part import Part
from gator.cost.latency.predict import Layers
from gator.cost.latency.quiet import undisturbed
from gator.cost.latency.runtime import runtime_of
from gator.cost.latency.segments import Segment, segments_of
from gator.cost.latency.steps import Point, Series, Step, Steps, fine_widths, step_of
from gator.cost.latency.stopwatch import Run, Stopwatch
from gator.cost.latency.store import write
from gator.cost.latency.table import Calibration, Table, network_name
from gator.cost.latency.turns import Place, Turns
from gator.cost.timing import Timing, rounds_worth, timed
from gator.graph.hypergraph import Hypergraph
from gator.graph.macs import macs
from gator.surgery.cut import cut

_NETWORKS, _UNSEEN = 16, 8  # of random widths: to fit to, and to test on
_OWN_WEIGHT = 4
_OFTEN = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # times the call that was measured
_AS_GOOD = 1.2  # times the least mean square
_AT_ONCE = 8  # neighbouring widths
_STEP_GROUPS = 3  # groups of layers that are asked for steps
_WIDE = 8  # channels: less has no steps to show
_LAYER_MS, _NETWORK_MS = 100.0, 2000.0  # of timing for every point of a grid, and for every network
_ROUNDS = 50  # of what is always the same
_PASSES, _BESIDE = 2, 3  # times that networks are measured, minutes apart; and how many beside the network itself
_CHANNELS, _PIXELS, _EXAMPLES, _SEVERAL = 64, 28, 4, 6
log = logging.getLogger("gator")
Progress = Callable[[int, int, str], None]  # done, of how many, what


def logged(done: int, total: int, what: str) -> None:
    """Progress as lines of the library's log."""
    if total:
        log.info("latency table: %d of %d, %s", done, total, what)


@dataclass
class Builder:
    """Times what a table lacks for one network, and writes the table down after every few measurements."""

    model: nn.Module
    graph: Hypergraph
    table: Table
    path: Path
    progress: Progress = logged

    def __post_init__(self) -> None:
        self.setup = self.table.key.setup
        self.runtime = runtime_of(self.setup)
        self.segments = segments_of(self.graph)
        self.name = network_name(self.segments)
        self.watch = Stopwatch(self.setup, self.graph.inputs, _ROUNDS)

    def complete(self, *, layers_alone: bool) -> bool:
        """Whether nothing is left to be timed, or nothing of layers."""
        known = all(segment.group in self.table.steps for segment in self.segments)
        layers = known and not self._unseen() and not self.missing()
        return layers and (layers_alone or self.name in self.table.calibrations)

    def build(self) -> Calibration:
        """The calibration of this network, made now or before."""
        self.time_layers()
        if self.name not in self.table.calibrations:
            self._time_networks()
            self.table.calibrations[self.name] = self._calibrated()
            write(self.table, self.path)
        return self.table.calibrations[self.name]

    # The yardstick: a processor is now faster, now slower, for seconds at a time.

    @cached_property
    def _yardstick(self) -> Run:
        # Where layers wait for memory, so must the yardstick; but it is run beside every few of them, and must not take long.
        return self._chain(_wide, 1, min(self.setup.batch or 1, _EXAMPLES))

    def _chain(self, layer: Callable[[], nn.Module], length: int, batch: int) -> Run:
        with torch.random.fork_rng(devices=[]):
            layers = [layer() for _ in range(length)]
        given = torch.ones(batch, _CHANNELS, _PIXELS, _PIXELS)
        with self.setup.on():
            return self.runtime.prepare(nn.Sequential(*layers), self.setup.placed(((given,), {})), self.setup)

    def _in_turns(self, runs: Sequence[Run], rounds: int) -> list[float]:
        """Milliseconds of runs as they would have been when the yardstick was first measured."""
        often = max(round(_LAYER_MS / (rounds * self.table.yardstick_ms)), 1)  # it must be as certain as what it measures
        yardstick = partial(_repeated, self._yardstick, often)
        own, *others = undisturbed(lambda: timed([yardstick, *runs], rounds=rounds, warmup=1))
        return [other.mean_ms * often * self.table.yardstick_ms / own.mean_ms for other in others]

    def _begin(self) -> None:
        with self.setup.on():
            self.table.yardstick_ms = undisturbed(lambda: timed([self._yardstick], rounds=_ROUNDS))[0].mean_ms
            chains = [self._chain(_narrow, length, 1) for length in (1, _SEVERAL)]
            one, several = self._in_turns(chains, _ROUNDS)
        # What comes with every call of a runtime, however many layers it runs: waking threads, passing tensors.
        self.table.call_ms = max((_SEVERAL * one - several) / (_SEVERAL - 1), 0.0)

    # Steps.

    def _time_steps(self, sides: Sequence[tuple[Segment, int]]) -> None:
        """What times of neighbouring widths show, on either side of layers; of groups that work little nothing is asked."""
        series: dict[tuple[str, int], list[Series]] = {}
        for done, (segment, side) in enumerate(sides):
            self.progress(done, len(sides), f"steps of {segment.title}")
            widths = fine_widths(segment.whole[side])
            points = [(w, segment.whole[1]) if side == 0 else (segment.whole[0], w) for w in widths]
            found: dict[int, float] = {}
            # What goes wrong for all that are timed together must not look like a step: so no neighbours, nor every other one.
            several = -(-len(points) // _AT_ONCE) | 1
            for first in range(several):
                times = self._times([(segment, point) for point in points[first::several]])
                found.update(zip(widths[first::several], times, strict=True))
            series.setdefault((segment.group, side), []).append(found)
        for group in dict.fromkeys(group for group, _ in series):
            known = self.table.steps[group].sides
            read, written = (step_of(series[group, side]) if (group, side) in series else known[side] for side in (0, 1))
            self.table.steps[group] = Steps(read, written)
            # Their grids are others now, and networks with these layers must be calibrated again.
            for name in [name for name, found in self.table.calibrations.items() if group in found.groups]:
                del self.table.calibrations[name]

    def _unseen(self) -> list[tuple[Segment, int]]:
        """Layers and sides whose steps are not known from layers as wide as theirs."""
        shown = [(segment, side) for segment in self._shown() for side in (0, 1) if segment.whole[side] >= _WIDE]
        widest: dict[tuple[str, int], int] = {}
        for segment, side in shown:
            place = segment.group, side
            widest[place] = max(widest.get(place, 0), *fine_widths(segment.whole[side]))
        return [(s, side) for s, side in shown if widest[s.group, side] > self.table.steps[s.group].sides[side].seen]

    def _shown(self) -> list[Segment]:
        """Of the groups that work most, the layer that works most and the widest, which may show what the other hides."""
        program = self.graph.eval.program
        found: dict[str, list[tuple[int, int, Segment]]] = {}
        for segment in self.segments:
            if max(segment.whole) >= _WIDE:
                work = macs(program.calls[segment.anchor], lambda v: program.values[v].shape)
                wide = max(segment.whole[0], 1) * max(segment.whole[1], 1)
                found.setdefault(segment.group, []).append((work, wide, segment))
        groups = sorted(found.values(), key=lambda group: -max(work for work, _, _ in group))[:_STEP_GROUPS]
        both = [max(group, key=key)[2] for group in groups for key in (lambda of: of[0], lambda of: of[1])]
        return list({(segment.kind, segment.whole): segment for segment in both}.values())

    # Layers.

    def missing(self) -> dict[tuple[str, Point], Segment]:
        """Entries that are still to be finished, by kind and widths: those that no finished one covers, the widest first."""
        found: dict[tuple[str, Point], Segment] = {}
        for segment in sorted(self.segments, key=lambda segment: segment.whole, reverse=True):
            wider = any(s.kind == segment.kind and Entry("", "", s.whole).covers(segment.whole) for s in found.values())
            if not wider and self.table.entry_for(segment) is None:
                found[segment.kind, segment.whole] = segment
        return found

    def time_layers(self) -> None:
        """Steps and layers, without whole networks."""
        if not self.table.yardstick_ms:
            self._begin()
        for segment in self.segments:
            self.table.steps.setdefault(segment.group, Steps(Step(1, 1), Step(1, 1)))
        unseen = self._unseen()
        if unseen:
            self._time_steps(unseen)
            write(self.table, self.path)
        todo = self.missing()
        for key, segment in todo.items():
            self.table.entries.setdefault(key, Entry(segment.kind, segment.title, segment.whole))
        steps = self.table.steps
        missing = {s: self.table.entries[key].missing(steps[s.group]) for key, s in todo.items()}
        places = [(segment, point) for segment, points in missing.items() for point in points]
        done = 0
        for some, beside in Turns(self.graph, self.segments, self.setup.batch or 1).of(places):
            self.progress(done, len(places), some[0][0].title)
            for (segment, point), ms in zip(some, self._times([*some, *beside]), strict=False):
                self.table.entries[segment.kind, segment.whole].ms[point] = ms
            done += len(some)
            write(self.table, self.path)

    def _times(self, places: Sequence[Place]) -> list[float]:
        parts = {segment: Part(self.model, self.graph, segment) for segment, _ in places}
        with self.setup.on():
            runs = [self.runtime.prepare(*parts[s].built(*point, self.setup), self.setup) for s, point in places]
            return [max(ms, 1e-6) for ms in self._in_turns(runs, rounds_worth(runs, _LAYER_MS, least=6))]

    # Networks.

    def _drawn(self) -> Iterator[list[int]]:
        """Widths of the networks to fit to and, last, to test on; half of them in full blocks."""
        block = max(self.table.steps[segment.group].block for segment in self.segments)
        for count, seed in ((_NETWORKS, 1), (_UNSEEN, 2)):
            rough = drawn_widths(self.graph, count - count // 2, seed=seed)
            full = drawn_widths(self.graph, count // 2, seed=seed + 100, block=block)
            pairs = itertools.zip_longest(rough, full)
            yield from ([int(w) for w in widths] for pair in pairs for widths in pair if widths is not None)

    def _time_networks(self) -> None:
        """The network itself in milliseconds, the others as shares of it, measured in turns with it, and again later on."""
        if self.name in self.table.timed:
            return
        itself = [edge.width for edge in self.graph.edges]
        whole = self.watch.prepare(self._network(itself))
        drawn = list(self._drawn())
        begun = self.table.begun.setdefault(self.name, [])
        if [widths for widths, *_ in begun] != (_PASSES * drawn)[: len(begun)]:
            begun.clear()  # they were drawn for other steps
        while len(begun) < _PASSES * len(drawn):
            number, first = divmod(len(begun), len(drawn))
            some = drawn[first : first + _BESIDE]
            self.progress(len(begun), _PASSES * len(drawn), f"whole networks, {('once', 'again')[number]}")
            own, *others = self._times_of_networks([whole, *(self.watch.prepare(self._network(widths)) for widths in some)])
            begun += [(widths, other.mean_ms, own.mean_ms) for widths, other in zip(some, others, strict=True)]
            write(self.table, self.path)
        sums = np.array([(ms, own) for _, ms, own in begun]).reshape(_PASSES, len(drawn), 2).sum(0)
        shares = [(widths, float(ms / own)) for widths, (ms, own) in zip(drawn, sums, strict=True)]
        self.table.timed[self.name] = [(itself, float(sums[:, 1].mean()) / _PASSES), *shares]
        del self.table.begun[self.name]
        write(self.table, self.path)

    def _times_of_networks(self, runs: Sequence[Run]) -> tuple[Timing, ...]:
        with self.setup.on():
            rounds = rounds_worth(runs, _NETWORK_MS, least=5)
            return undisturbed(lambda: timed(runs, rounds=rounds, warmup=0))  # they ran already, to be counted

    def _network(self, widths: Sequence[int]) -> nn.Module:
        return cut(self.model, self.graph, kept_of(self.graph, widths), keep_class=False, verify=False)

    def _calibrated(self) -> Calibration:
        layers = Layers(self.graph, self.segments, self.table)
        (itself, whole_ms), *rest = self.table.timed[self.name]
        drawn = [itself, *(widths for widths, _ in rest)]
        times = [whole_ms, *(share * whole_ms for _, share in rest)]
        seen = 1 + _NETWORKS

        def fit(call_ms: float) -> tuple[dict[str, float], float, float]:
            # The network itself counts several times: budgets are shares of it.
            parts = [layers.parts(widths, call_ms) for widths in drawn[:1] * (_OWN_WEIGHT - 1) + drawn[:seen]]
            return fitted(parts, times[:1] * (_OWN_WEIGHT - 1) + times[:seen])

        # A call was measured with one size of tensors; what it is for those of this network, networks must tell.
        fits = {often * self.table.call_ms: fit(often * self.table.call_ms) for often in _OFTEN}
        least = min(error for *_, error in fits.values())
        call_ms, (factors, constant, _) = next((call, found) for call, found in fits.items() if found[-1] <= _AS_GOOD * least)
        predicted = [applied(layers.parts(widths, call_ms), factors, constant) for widths in drawn[seen:]]
        error, order = mape(predicted, times[seen:]), spearman(predicted, times[seen:])
        title = f"{type(self.model).__name__} on {self.watch.shapes}"
        return Calibration(factors, constant, call_ms, title, whole_ms, _NETWORKS, len(predicted), error, order)


def _wide() -> nn.Module:
    """About a millisecond of what networks are made of."""
    narrow, wide = _CHANNELS, 2 * _CHANNELS
    layers = nn.Conv2d(narrow, wide, 1), nn.ReLU(), nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.ReLU()
    return nn.Sequential(nn.Conv2d(narrow, narrow, 3, padding=1), nn.ReLU(), *layers, nn.Conv2d(wide, narrow, 1))


def _narrow() -> nn.Module:
    return nn.Conv2d(_CHANNELS, _CHANNELS, 1)


def _repeated(run: Run, often: int) -> None:
    for _ in range(often):
        run()
