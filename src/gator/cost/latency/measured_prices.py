"""`MeasuredPrices`: predicted prices, corrected by measurements on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gator.cost.axis_sizes import full_widths
from gator.cost.latency.network_timer import Baseline
from gator.cost.latency.probe_prices import ProbePrices
from gator.cost.latency.table_prices import TablePrices
from gator.cost.latency.widths import cut_to
from gator.cost.prices import Floats, PlainData, Prices, Widths
from gator.graph.hypergraph import Hypergraph

_NEARLY_FULL = 0.9  # of the channels: from there on predictions approach the measured time of the unpruned network
_TOO_NEAR = 0.5  # of the way from there to the full widths: what is measured beyond it says too little about the factor


@dataclass(frozen=True)
class MeasuredPrices(Prices):
    """Predicted prices times a factor. Finished networks are measured interleaved with the unpruned one, the baseline."""

    predicted: ProbePrices | TablePrices
    baseline: Baseline
    factor: float
    full_widths: tuple[int, ...]
    step: Callable[[], int]  # of widths; measured when it is first asked for
    unit = "ms"
    tolerance = 0.03  # timing a network twice differs by 1 to 2 %

    def total(self, widths: Widths) -> float:
        """The unpruned network takes what it was measured to take; nearly full networks lie between that and the prediction."""
        nearness, full_factor = self._near_full(widths)
        return self.predicted.total(widths) * ((1 - nearness) * self.factor + nearness * full_factor)

    def _near_full(self, widths: Widths) -> tuple[float, float]:
        """How near to the full widths these are, from 0 to 1, and the factor that is right for the full widths."""
        share = float(np.mean(np.asarray(widths) / np.asarray(self.full_widths)))
        nearness = min(max((share - _NEARLY_FULL) / (1 - _NEARLY_FULL), 0.0), 1.0)
        return nearness, self.baseline.ms / self.predicted.total(self.full_widths) if nearness else 0.0

    def per_channel(self, widths: Widths) -> Floats:
        return self.factor * self.predicted.per_channel(widths)

    def savings(self, widths: Widths, lower: Sequence[NDArray[np.int64]]) -> list[Floats]:
        """Those that are predicted. Near the full widths the difference of two totals would be that of two ways to predict."""
        return [self.factor * each for each in self.predicted.savings(widths, lower)]

    @property
    def width_step(self) -> int:  # type: ignore[override]
        return self.step()

    def measure(self, network: nn.Module, widths: Widths) -> float:  # noqa: ARG002
        """Milliseconds of a finished network."""
        return self.baseline.measure(network)

    def recalibrated(self, widths: Widths, measured: float) -> MeasuredPrices:
        """The same prices with the factor that gives this measured time. Nearly full widths are left to the baseline."""
        nearness, full_factor = self._near_full(widths)
        if nearness > _TOO_NEAR:
            return self
        factor = (measured / self.predicted.total(widths) - nearness * full_factor) / (1 - nearness)
        return replace(self, factor=factor) if factor > 0 else self

    def state(self) -> PlainData:
        baseline = {"setup": asdict(self.baseline.timer.setup), "ms": self.baseline.ms, "factor": self.factor}
        return {**self.predicted.state(), "baseline": baseline}

    def state_for_cut(self, model: nn.Module, graph: Hypergraph) -> PlainData:
        """How the layers add up, and the time of the cut network. Its factor and what a probe says of it are found anew."""
        state = self.state()
        ms = self.baseline.measure(cut_to(model, graph, full_widths(graph)))
        return {**state, "probed": None, "baseline": {**state["baseline"], "ms": ms, "factor": None}}

    def __deepcopy__(self, memo: dict[int, Any]) -> MeasuredPrices:
        return self
