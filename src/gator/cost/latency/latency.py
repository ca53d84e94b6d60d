"""`Latency`: the time of one forward pass on the person's own device and runtime, as a cost (section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gator.cost.latency.build import Builder, Progress, logged
from gator.cost.latency.predict import Layers, Tabled
from gator.cost.latency.probe import Probed, probed_prices
from gator.cost.latency.runtime import runtime_of
from gator.cost.latency.segments import segments_of
from gator.cost.latency.setup import Setup, made_setup
from gator.cost.latency.stopwatch import Reference, Stopwatch
from gator.cost.latency.store import check_key, key_here, locked, read, usual_path
from gator.cost.latency.table import Calibration, Table, network_name
from gator.cost.prices import Cost, Floats, PlainData, Prices, Widths
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph
from gator.graph.trace import retraced
from gator.rank_zero import on_rank_zero
from gator.surgery.cut import cut

METHODS = ("table", "probe")
_ALMOST = 0.9  # of the channels


@dataclass(frozen=True)
class Latency(Cost):
    """Milliseconds of one forward pass in eval mode.

    `method="table"` predicts from layers timed over a grid of widths, kept in a file for the next time; `"probe"` is the
    paper's: what half of an edge's channels save. `batch` None is that of the example inputs, `threads` None as many as torch
    uses. `table` is a file to use instead of the one in the cache; with `other_device` it may be of any device, and nothing is
    measured here.
    """

    runtime: str = "eager"
    method: str = "table"
    batch: int | None = None
    threads: int | None = None
    channels_last: bool = False
    dtype: str | torch.dtype = "float32"
    device: str = "cpu"
    rounds: int = 20
    table: str | Path = ""
    other_device: bool = False
    setup: Setup = field(init=False, repr=False)
    unit = "ms"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise GatorError(f"method={self.method!r}; expected {' or '.join(map(repr, METHODS))}")
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise GatorError(f"rounds={self.rounds!r}; expected a whole number, 1 or more")
        if self.other_device and not self.table:
            raise GatorError("other_device=True needs table=, the file that was made on the other device")
        setup = made_setup(self.runtime, self.device, self.threads, self.dtype, self.channels_last, self.batch)
        if not self.other_device:
            runtime_of(setup)
        object.__setattr__(self, "setup", setup)

    def on(self, model: nn.Module, graph: Hypergraph) -> Measured | Tabled:
        return self._prices(model, graph, None)

    def restored(self, model: nn.Module, graph: Hypergraph, state: PlainData) -> Measured | Tabled:
        return self._prices(model, graph, state)

    def _prices(self, model: nn.Module, graph: Hypergraph, wholes: Mapping[str, Any] | None) -> Measured | Tabled:
        """Prices of a network that was priced before, or that was cut from one: `wholes` is what those prices saved."""
        graph = retraced(graph, model)
        if wholes is not None:
            self._check_wholes(wholes)
        if self.other_device:
            return self.tabled(graph, read(Path(self.table)), None if wholes is None else Calibration(**wholes["calibration"]))
        setup = self._setup_on(graph)
        if wholes is not None and wholes["setup"] != asdict(setup):
            was = Setup(**wholes["setup"])
            raise GatorError(f"the latencies so far were measured under other conditions: {was}; now it is {setup}")
        if self.method == "table":
            on_rank_zero(lambda: self.found_for(graph))  # refused before anything is measured
        # The same form as the networks it is compared to: an fx graph over the same layers.
        network = cut(model, graph, {}, keep_class=False, verify=False)
        reference = Stopwatch(setup, graph.inputs, self.rounds).reference(network, None if wholes is None else wholes["ms"])
        widths = [edge.width for edge in graph.edges]
        priced: Probed | Tabled
        if self.method == "probe":
            given = None if wholes is None else wholes["prices"]
            prices = on_rank_zero(lambda: probed_prices(model, graph, reference)) if given is None else np.array(given)
            priced, factor = Probed(prices, widths, reference.ms), 1.0
        else:
            text = on_rank_zero(lambda: self.built(model, graph, layers_alone=wholes is not None)[1].to_json())
            calibration = None if wholes is None else Calibration(**wholes["calibration"])
            priced = self.tabled(graph, Table.from_json(text, "the table"), calibration)
            # The table was made on another day; what the whole network takes today stands for the difference.
            factor = reference.ms / (priced.calibration.whole_ms if wholes is None else priced.total(widths))
        if wholes is not None and wholes["factor"] is not None:
            factor = wholes["factor"]
        return Measured(priced, reference, factor, widths)

    def _check_wholes(self, wholes: Mapping[str, Any]) -> None:
        """Prices go on as they began."""
        was, here = wholes["setup"] is not None, not self.other_device
        if was != here:
            now = "measured here, and now other_device=True" if was else "of another device, and now other_device=False"
            raise GatorError(f"the latencies so far were {now}; go on as it began")
        method = "probe" if wholes["calibration"] is None else "table"
        if here and method != self.method:
            raise GatorError(
                f'the latencies so far are by method="{method}", and now method="{self.method}"; go on as it began'
            )

    def _setup_on(self, graph: Hypergraph) -> Setup:
        """With the batch as a number: a table has to say which."""
        return replace(self.setup, batch=self.batch or graph.inputs.batch)

    def built(
        self,
        model: nn.Module,
        graph: Hypergraph,
        path: Path | None = None,
        progress: Progress = logged,
        *,
        layers_alone: bool = False,
    ) -> tuple[Path, Table]:
        """The table with all that this network needs, and where it is kept; with `layers_alone` without whole networks."""
        path, table = self.found_for(graph, path)
        if Builder(model, graph, table, path).complete(layers_alone=layers_alone):
            return path, table
        with locked(path):
            path, table = self.found_for(graph, path)  # another process may have added to it
            builder = Builder(model, graph, table, path, progress)
            if layers_alone:
                builder.time_layers()
            else:
                builder.build()
        return path, table

    def tabled(self, graph: Hypergraph, table: Table, calibration: Calibration | None = None) -> Tabled:
        """Prices of a network from a finished table, by its own calibration or that of the network it was cut from."""
        segments = segments_of(graph)
        calibration = calibration or table.calibrations.get(network_name(segments))
        if calibration is None:
            raise GatorError(f"the latency table {self.table} has no calibration of this network; build it on its device first")
        return Tabled(Layers(graph, segments, table), calibration)

    def found_for(self, graph: Hypergraph, path: Path | None = None) -> tuple[Path, Table]:
        """The table for a network, empty if there is none yet, and where it is kept; refused if it is of another device."""
        here = key_here(self._setup_on(graph))
        path = path or (Path(self.table) if self.table else usual_path(here))
        table = read(path) if path.exists() or path == Path(self.table) else Table(here)
        check_key(table.key, here, str(path))
        return path, table


@dataclass(frozen=True)
class Measured(Prices):
    """Predicted prices times a factor, and the measurement that has the last word."""

    priced: Probed | Tabled
    reference: Reference
    factor: float
    whole: Sequence[int]  # the widths of the network itself
    unit = "ms"
    tolerance = 0.03  # what a measured latency may be below its target, as a share of it

    def total(self, widths: Widths) -> float:
        """The network itself takes what it was measured to take, and what is almost as wide is drawn to that."""
        near, whole = self._near(widths)
        return self.priced.total(widths) * ((1 - near) * self.factor + near * whole)

    def _near(self, widths: Widths) -> tuple[float, float]:
        """How near to the network itself these widths are, from 0 to 1, and the factor that is right for that one."""
        left = float(np.mean(np.asarray(widths) / np.asarray(self.whole)))
        near = min(max((left - _ALMOST) / (1 - _ALMOST), 0.0), 1.0)
        return near, self.reference.ms / self.priced.total(self.whole) if near else 0.0

    def per_channel(self, widths: Widths) -> Floats:
        return self.factor * self.priced.per_channel(widths)

    def state(self) -> PlainData:
        kind = {"prices": None, "calibration": None, **self.priced.state()}
        return {**kind, "ms": self.reference.ms, "factor": self.factor, "setup": asdict(self.reference.stopwatch.setup)}

    def state_for_cut(self, model: nn.Module, graph: Hypergraph) -> PlainData:
        """What the prices of a network cut from this one need: how the layers add up, and what it takes beside this one."""
        network = cut(model, graph, {}, keep_class=False, verify=False)
        return {**self.state(), "prices": None, "ms": self.reference.measured(network), "factor": None}

    def recalibrated(self, widths: Widths, measured: float) -> Measured:
        """The same, with the factor that gives what a network of these widths was measured to take."""
        near, whole = self._near(widths)
        factor = (measured / self.priced.total(widths) - near * whole) / (1 - near) if near < 1 else 0.0
        return replace(self, factor=factor) if factor > 0 else self

    @property
    def width_step(self) -> int:  # type: ignore[override]
        return self.priced.width_step

    def measure(self, network: nn.Module, widths: Widths) -> float:  # noqa: ARG002
        """Milliseconds of a finished network."""
        return self.reference.measured(network)

    def __deepcopy__(self, memo: dict[int, Any]) -> Measured:
        return self
