"""`Latency`: the time of one forward pass on the user's own device and runtime, as a cost (section 3.3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import nn

from gator.cost.axis_sizes import full_widths
from gator.cost.latency.fit import LatencyFit, fit_of
from gator.cost.latency.layer_times import LayerTimes
from gator.cost.latency.measured_prices import MeasuredPrices
from gator.cost.latency.measuring.builder import Builder, Progress, log_progress
from gator.cost.latency.measuring.missing import Missing
from gator.cost.latency.network_timer import Baseline, NetworkTimer
from gator.cost.latency.probe_prices import ProbePrices, probe
from gator.cost.latency.runtimes.by_name import runtime_of
from gator.cost.latency.runtimes.run_setup import DtypeName, LatencyMethod, RuntimeName, Setup, checked_setup
from gator.cost.latency.table.latency_table import Table
from gator.cost.latency.table.table_file import check_key, default_path, key_here, locked, read
from gator.cost.latency.table_prices import TablePrices
from gator.cost.latency.width_step import paying_step
from gator.cost.latency.widths import cut_to
from gator.cost.prices import Cost, PlainData, Widths
from gator.errors import GatorError
from gator.extras import optional_import
from gator.graph.hypergraph import Hypergraph
from gator.graph.trace import retraced
from gator.rank_zero import on_rank_zero

_NEEDED_BY_TABLES = ("scipy", "filelock", "platformdirs")


@dataclass(frozen=True)
class Latency(Cost):
    """Milliseconds of one forward pass in eval mode, measured on this machine.

    Args:
        runtime: what runs the network where it is used.
        method: "table" predicts from layers that are timed over a grid of widths; the times are kept in a file and used again.
            "probe" is the method of the paper: the price of a channel is what removing half of its edge saves.
        batch: examples at a time; by default as many as in the example inputs.
        threads: by default as many as torch uses.
        channels_last: the memory layout, for PyTorch's own runtimes.
        dtype: of weights and inputs.
        device: "cpu", "cuda" or "mps".
        rounds: how often each network is run when it is timed, at least.
        table: a file to use instead of the one in the cache folder; it is made if it does not exist.
        other_device: use `table` although it was measured on another device; nothing is measured here.

    Raises:
        GatorError: if a setting is not valid or not possible on this machine.
        MissingExtraError: if a package is missing that the runtime or the method needs.

    Examples:
        >>> cost = gator.Latency("eager", threads=1)  # then gator.Pruner(model, inputs, cost=cost, target="5 ms", steps=1000)
        >>> print(cost.setup)
        eager, cpu, 1 thread, float32, batch of the example inputs
    """

    runtime: RuntimeName = "eager"
    method: LatencyMethod = "table"
    batch: int | None = None
    threads: int | None = None
    channels_last: bool = False
    dtype: DtypeName | torch.dtype = "float32"
    device: str = "cpu"
    rounds: int = 20
    table: str | Path = ""
    other_device: bool = False
    setup: Setup = field(init=False, repr=False)
    unit = "ms"

    def __post_init__(self) -> None:
        if self.method not in get_args(LatencyMethod):
            raise GatorError(f"method={self.method!r}; expected {' or '.join(map(repr, get_args(LatencyMethod)))}")
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise GatorError(f"rounds={self.rounds!r}; expected an integer, 1 or more")
        if self.other_device and not self.table:
            raise GatorError("other_device=True needs table=, the file that was measured on the other device")
        setup = checked_setup(self.runtime, self.device, self.threads, self.dtype, self.channels_last, self.batch)
        if not self.other_device:
            runtime_of(setup)
        if self.method == "table":
            for package in _NEEDED_BY_TABLES:
                optional_import(package, extra="latency", purpose="a latency table")
        object.__setattr__(self, "setup", setup)

    # Prices: one constructor for each way to get them.

    def on(self, model: nn.Module, graph: Hypergraph) -> MeasuredPrices | TablePrices:
        graph = retraced(graph, model)
        if self.other_device:
            return self._of_other_device(graph)
        return self._by_probe(model, graph) if self.method == "probe" else self._by_table(model, graph)

    def restored(self, model: nn.Module, graph: Hypergraph, state: PlainData) -> MeasuredPrices | TablePrices:
        graph = retraced(graph, model)
        self._check_state(state, graph)
        if self.other_device:
            return self._of_other_device(graph, LatencyFit(**state["fit"]))
        return self._measured_before(model, graph, state)

    def _by_table(self, model: nn.Module, graph: Hypergraph) -> MeasuredPrices:
        """Predicted by the table of this machine; what is missing in it is measured."""
        baseline = self._baseline(model, graph)
        table = on_rank_zero(lambda: self.build_table(model, graph)[1])
        layers = LayerTimes(graph, table)
        result = on_rank_zero(lambda: fit_of(layers, table))  # the same everywhere, to the last bit
        # The table may be of another day: the two times of the unpruned network stand for the difference.
        factor = baseline.ms / result.unpruned_ms
        return self._measured(model, graph, TablePrices(layers, result.fit), baseline, factor)

    def _by_probe(self, model: nn.Module, graph: Hypergraph) -> MeasuredPrices:
        """The prices of the paper, measured now."""
        baseline = self._baseline(model, graph)
        probed = on_rank_zero(lambda: probe(model, graph, baseline))
        return self._measured(model, graph, ProbePrices(probed, full_widths(graph), baseline.ms), baseline, 1.0)

    def _measured_before(self, model: nn.Module, graph: Hypergraph, state: PlainData) -> MeasuredPrices:
        """The prices of a network that was measured before, or that was cut from one that was."""
        baseline = self._baseline(model, graph, state["baseline"]["ms"])
        prices: ProbePrices | TablePrices
        if self.method == "probe":
            saved = state["probed"]
            probed = on_rank_zero(lambda: probe(model, graph, baseline)) if saved is None else np.array(saved)
            prices = ProbePrices(probed, full_widths(graph), baseline.ms)
        else:
            table = on_rank_zero(lambda: self.build_table(model, graph, layers_only=True)[1])
            prices = TablePrices(LayerTimes(graph, table), LatencyFit(**state["fit"]))
        factor = state["baseline"]["factor"]
        factor = baseline.ms / prices.total(full_widths(graph)) if factor is None else factor
        return self._measured(model, graph, prices, baseline, factor)

    def _measured(
        self, model: nn.Module, graph: Hypergraph, predicted: TablePrices | ProbePrices, baseline: Baseline, factor: float
    ) -> MeasuredPrices:
        def ms_of(networks: Sequence[Widths]) -> list[float]:
            runs = [baseline.timer.prepare(cut_to(model, graph, widths)) for widths in networks]
            return [timing.mean_ms for timing in baseline.timer.accurate_times(runs)]

        def step() -> int:
            return 1 if baseline.timer.is_trial else on_rank_zero(lambda: paying_step(graph, ms_of))

        return MeasuredPrices(predicted, baseline, factor, full_widths(graph), cache(step))

    def _of_other_device(self, graph: Hypergraph, fit: LatencyFit | None = None) -> TablePrices:
        """Predicted by the table of another device, by the fit of this network or that of the network it was cut from."""
        table = read(Path(self.table))
        layers = LayerTimes(graph, table)
        return TablePrices(layers, fit or fit_of(layers, table).fit)

    def _baseline(self, model: nn.Module, graph: Hypergraph, ms: float | None = None) -> Baseline:
        if self.method == "table":
            on_rank_zero(lambda: self.find_table(graph))  # refuse a table of another device before anything is measured
        timer = NetworkTimer(self._setup_on(graph), graph.inputs, self.rounds)
        return Baseline.of(cut_to(model, graph, full_widths(graph)), timer, ms)

    def _check_state(self, state: PlainData, graph: Hypergraph) -> None:
        """Saved prices can only be continued under the settings they were made with."""
        was = "other_device=True" if state["baseline"] is None else f'method="{state["method"]}"'
        now = "other_device=True" if self.other_device else f'method="{self.method}"'
        if was != now:
            raise GatorError(f"the saved prices were made with {was}, now it is {now}; resume with the original setting")
        setup = self._setup_on(graph)
        if not self.other_device and state["baseline"]["setup"] != asdict(setup):
            saved = Setup(**state["baseline"]["setup"])
            raise GatorError(f"the saved prices were measured under other conditions: {saved}; now it is {setup}")

    def _setup_on(self, graph: Hypergraph) -> Setup:
        """With the batch as a number, which is part of a table's key."""
        return replace(self.setup, batch=self.batch or graph.inputs.batch)

    # The table of this machine.

    def find_table(self, graph: Hypergraph) -> tuple[Path, Table]:
        """The path of the table for a network, and the table, which is empty if there is no such file yet.

        Raises GatorError if the file is of another device, and FileError if it is not a table.
        """
        here = key_here(self._setup_on(graph))
        path = Path(self.table) if self.table else default_path(here)
        table = read(path) if path.exists() else Table(here)
        check_key(table.key, here, str(path))
        return path, table

    def build_table(
        self, model: nn.Module, graph: Hypergraph, progress: Progress = log_progress, *, layers_only: bool = False
    ) -> tuple[Path, Table]:
        """The path of the table for a network, and the table with all measurements that the network needs.

        What is missing is measured, with `layers_only` without whole networks. Only one process at a time does that; others
        wait for it.
        """
        path, table = self.find_table(graph)
        if Missing(graph, table).anything(layers_only=layers_only):
            with locked(path):
                logging.getLogger("gator").info("latency table: building %s", path)
                path, table = self.find_table(graph)  # another process may have added to it
                table = Builder(model, graph, table, path, progress).build(layers_only=layers_only)
        return path, table
