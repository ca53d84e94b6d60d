"""`Latency`: the time of one forward pass on the person's own device and runtime, as a cost (section 3.3)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gator.cost.latency.build import Builder
from gator.cost.latency.predict import Layers, Tabled
from gator.cost.latency.probe import Probed, probed_prices
from gator.cost.latency.runtime import runtime_of
from gator.cost.latency.segments import segments_of
from gator.cost.latency.setup import Setup, made_setup
from gator.cost.latency.stopwatch import Reference, Stopwatch, told_by_first
from gator.cost.latency.store import check_key, key_here, read, usual_path
from gator.cost.latency.table import Calibration, Table, network_name
from gator.cost.price import Floats, Priced, Widths
from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph
from gator.graph.trace import retraced
from gator.surgery.cut import cut

METHODS = ("table", "probe")


@dataclass(frozen=True)
class Latency:
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
        return self.again(model, graph, None)

    def again(self, model: nn.Module, graph: Hypergraph, wholes: dict[str, Any] | None) -> Measured | Tabled:
        """On a network cut from one that was seen before: its layers add up as `wholes` says that they did there."""
        graph = retraced(graph, model)
        if self.other_device:
            return self.tabled(graph, read(Path(self.table)))
        if self.method == "table":
            self.found_for(graph)  # refused before anything is measured
        # The same form as the networks it is compared to: an fx graph over the same layers.
        network = cut(model, graph, {}, keep_class=False, verify=False)
        reference = Stopwatch(self._setup_on(graph), graph.inputs, self.rounds).reference(network)
        now_ms = told_by_first(lambda: reference.ms)
        if self.method == "probe":
            prices = told_by_first(lambda: probed_prices(model, graph, reference))
            return Measured(Probed(prices, [edge.width for edge in graph.edges], now_ms), reference)
        if wholes is None:
            text = told_by_first(lambda: self._built(model, graph))
            return Measured(self.tabled(graph, Table.from_json(text, "the table"), now_ms), reference)
        text = told_by_first(lambda: self._built(model, graph, layers_alone=True))
        layers = Layers(graph, segments_of(graph), Table.from_json(text, "the table"))
        return Measured(Tabled(layers, Calibration(**wholes["calibration"]), wholes["today"]), reference)

    def _setup_on(self, graph: Hypergraph) -> Setup:
        """With the batch as a number: a table has to say which."""
        return replace(self.setup, batch=self.batch or graph.inputs.batch)

    def _built(self, model: nn.Module, graph: Hypergraph, *, layers_alone: bool = False) -> str:
        """The table with all that this network needs, as text."""
        path, table = self.found_for(graph)
        builder = Builder(model, graph, table, path)
        if layers_alone:
            builder.time_layers()
        else:
            builder.build()
        return table.to_json()

    def tabled(self, graph: Hypergraph, table: Table, now_ms: float | None = None) -> Tabled:
        """Prices of a network from a finished table; with `now_ms`, what the whole network takes today."""
        segments = segments_of(graph)
        calibration = table.calibrations.get(network_name(segments))
        if calibration is None:
            raise GatorError(f"the latency table {self.table} has no calibration of this network; build it on its device first")
        layers = Layers(graph, segments, table)
        return Tabled(layers, calibration) if now_ms is None else Tabled.measured_today(layers, calibration, now_ms)

    def found_for(self, graph: Hypergraph, path: Path | None = None) -> tuple[Path, Table]:
        """The table for a network, empty if there is none yet, and where it is kept; refused if it is of another device."""
        here = key_here(self._setup_on(graph))
        path = path or (Path(self.table) if self.table else usual_path(here))
        table = read(path) if path.is_file() or path == Path(self.table) else Table(here)
        check_key(table.key, here, str(path))
        return path, table


@dataclass(frozen=True)
class Measured:
    """Predicted prices, and the measurement that has the last word."""

    priced: Priced
    reference: Reference
    tolerance = 0.03  # what a measured latency may be below its target, as a share of it

    def total(self, widths: Widths) -> float:
        return self.priced.total(widths)

    def per_channel(self, widths: Widths) -> Floats:
        return self.priced.per_channel(widths)

    @property
    def wholes(self) -> dict[str, Any] | None:
        """What the network's successors need to know, as plain data."""
        if not isinstance(self.priced, Tabled):
            return None
        return {"calibration": asdict(self.priced.calibration), "today": self.priced.today}

    @property
    def block(self) -> int | None:
        """Channels the device works on at a time; None if the method does not show."""
        return self.priced.block if isinstance(self.priced, Tabled) else None

    def measured(self, network: nn.Module) -> float:
        """Milliseconds of a finished network."""
        return told_by_first(lambda: self.reference.measured(network))

    def __deepcopy__(self, memo: dict[int, Any]) -> Measured:
        return self
