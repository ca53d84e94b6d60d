"""`Latency`: the time of one forward pass on the person's own device and runtime, as a cost (section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gator.cost.latency.probe import Probed, probed_prices
from gator.cost.latency.runtime import runtime_of
from gator.cost.latency.setup import Setup, made_setup
from gator.cost.latency.stopwatch import Reference, Stopwatch, told_by_first
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
    uses.
    """

    runtime: str = "eager"
    method: str = "probe"
    batch: int | None = None
    threads: int | None = None
    channels_last: bool = False
    dtype: str | torch.dtype = "float32"
    device: str = "cpu"
    rounds: int = 20
    setup: Setup = field(init=False, repr=False)
    unit = "ms"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise GatorError(f"method={self.method!r}; expected {' or '.join(map(repr, METHODS))}")
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise GatorError(f"rounds={self.rounds!r}; expected a whole number, 1 or more")
        setup = made_setup(self.runtime, self.device, self.threads, self.dtype, self.channels_last, self.batch)
        runtime_of(setup)
        object.__setattr__(self, "setup", setup)

    def on(self, model: nn.Module, graph: Hypergraph) -> Measured:
        graph = retraced(graph, model)
        watch = Stopwatch(self.setup, graph.inputs, self.rounds)
        # The same form as the networks it is compared to: an fx graph over the same layers.
        reference = watch.reference(cut(model, graph, {}, keep_class=False, verify=False))
        widths = [edge.width for edge in graph.edges]
        prices, whole_ms = told_by_first(lambda: (probed_prices(model, graph, reference), reference.ms))
        return Measured(Probed(prices, widths, whole_ms), reference)


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

    def measured(self, network: nn.Module) -> float:
        """Milliseconds of a finished network."""
        return told_by_first(lambda: self.reference.measured(network))

    def __deepcopy__(self, memo: dict[int, Any]) -> Measured:
        return self
