"""Building a table for a network: what missing.py finds is measured and appended to the table.

The order is: the reference workload, times of neighbouring widths (step patterns), layers over a grid of widths, whole
networks. The table is written after every session of a few measurements.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import nn

from gator.cost.axis_sizes import full_widths
from gator.cost.latency.layers.fused_layers import fused_layers_of, network_name
from gator.cost.latency.layers.standalone import Standalone
from gator.cost.latency.measuring.interleave import AT_ONCE, Interleaving, Place
from gator.cost.latency.measuring.missing import Missing
from gator.cost.latency.measuring.reference import ReferenceWorkload
from gator.cost.latency.network_timer import TOGETHER, NetworkTimer
from gator.cost.latency.runtimes.by_name import runtime_of
from gator.cost.latency.table.latency_table import (
    STEP_PURPOSES,
    LayerTime,
    Measurement,
    NetworkTime,
    Purpose,
    ReferenceTime,
    Table,
)
from gator.cost.latency.table.table_file import write
from gator.cost.latency.widths import cut_to
from gator.cost.timing import rounds_worth, timed, undisturbed
from gator.graph.hypergraph import Hypergraph

_NETWORK_MS = 2000.0  # of timing on every whole network and pass: fits are judged by them
Progress = Callable[[int, int, str], None]  # done, of how many, what


def log_progress(done: int, total: int, what: str) -> None:
    """Progress as lines of the library's logger."""
    logging.getLogger("gator").info("latency table: %d of %d, %s", done, total, what)


class Builder:
    """Measures what a table lacks for one network. `table` is always the one with everything measured so far."""

    def __init__(
        self, model: nn.Module, graph: Hypergraph, table: Table, path: Path, progress: Progress = log_progress
    ) -> None:
        self.model, self.graph, self.table, self.path, self.progress = model, graph, table, path, progress
        self._setup, self._layers = table.key.setup, fused_layers_of(graph)
        self._reference = ReferenceWorkload(self._setup)

    def build(self, *, layers_only: bool = False) -> Table:
        """Measure what is missing, or all of it but whole networks. After a KeyboardInterrupt the message says what is kept."""
        try:
            return self._build(layers_only)
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(
                f"stopped while a latency table was being built; what has been timed is kept in {self.path}, and the same "
                "command continues from there"
            ) from interrupt

    def _build(self, layers_only: bool) -> Table:
        if self.table.reference_ms is None:
            self._append([ReferenceTime(self._reference.first_ms())])
        self._time_series()
        self._time_grids()
        if not layers_only:
            self._time_networks()
        return self.table

    def _append(self, measurements: Iterable[Measurement]) -> None:
        self.table = self.table.plus(measurements)
        write(self.table, self.path)

    def _time_series(self) -> None:
        missing = Missing(self.graph, self.table).series()
        for done, (layer, side, widths) in enumerate(missing):
            self.progress(done, len(missing), f"step pattern of {layer.title}")
            # Neighbouring widths are not timed in one session, nor every second one: what disturbs a session would look like
            # a step.
            sessions = math.ceil(len(widths) / AT_ONCE) | 1
            for first in range(min(sessions, len(widths))):
                points = [(w, layer.full[1]) if side == 0 else (layer.full[0], w) for w in widths[first::sessions]]
                self._append(self._layer_times([(layer, point) for point in points], STEP_PURPOSES[side]))

    def _time_grids(self) -> None:
        missing, done = Missing(self.graph, self.table).points(), 0
        for places, beside in Interleaving(self.graph, self._layers, self._setup.batch or 1).sessions(missing):
            self.progress(done, len(missing), places[0][0].title)
            self._append(self._layer_times(places, "grid", beside))
            done += len(places)

    def _layer_times(self, places: Sequence[Place], purpose: Purpose, beside: Sequence[Place] = ()) -> list[LayerTime]:
        alone = {layer: Standalone(self.model, self.graph, layer) for layer, _ in (*places, *beside)}
        assert self.table.reference_ms is not None
        with self._setup.on():
            built = (alone[layer].built(point, self._setup) for layer, point in (*places, *beside))
            runs = [runtime_of(self._setup).prepare(*network, self._setup) for network in built]
            times = self._reference.times(runs, self.table.reference_ms)
        return [
            LayerTime(purpose, layer.kind, layer.group, layer.title, layer.full, point, max(ms, 1e-6))
            for (layer, point), ms in zip(places, times[: len(places)], strict=True)
        ]

    def _time_networks(self) -> None:
        missing = Missing(self.graph, self.table).networks()
        if not missing:
            return
        timer = NetworkTimer(self._setup, self.graph.inputs)
        name, title = network_name(self._layers), f"{type(self.model).__name__} on {timer.shapes}"
        unpruned = timer.prepare(cut_to(self.model, self.graph, full_widths(self.graph)))
        for start in range(0, len(missing), TOGETHER):
            self.progress(start, len(missing), "whole networks")
            planned = missing[start : start + TOGETHER]
            runs = [unpruned, *(timer.prepare(cut_to(self.model, self.graph, each.widths)) for each in planned)]
            with self._setup.on():
                rounds = rounds_worth(runs, _NETWORK_MS)
                own, *others = undisturbed(lambda: timed(runs, rounds=rounds, warmup=0))  # rounds_worth has run them already
            self._append(
                NetworkTime(name, title, each.widths, each.held_out, other.mean_ms, own.mean_ms)
                for each, other in zip(planned, others, strict=True)
            )
