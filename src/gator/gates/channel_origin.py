"""After a cut: the graph of the smaller network, and which channel of the larger one each of its channels was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gator.errors import GatorError
from gator.gates.gate import Gates
from gator.graph.hypergraph import Hypergraph
from gator.graph.trace import trace_inputs
from gator.surgery.keep_class import kept_in_class


@dataclass(frozen=True)
class Origin:
    """Pairs of a channel of the smaller network and one of the larger. A unit may stand for several old ones."""

    new: NDArray[np.int64]
    old: NDArray[np.int64]
    count: int

    @property
    def first(self) -> NDArray[np.int64]:
        """One old channel for every new one."""
        found = np.full(self.count, -1, dtype=np.int64)
        found[self.new] = self.old
        return found

    def total(self, values: Tensor) -> Tensor:
        """What the old channels had, for the new ones; the sum where there are several."""
        new, old = (torch.as_tensor(part, device=values.device) for part in (self.new, self.old))
        return values.new_zeros(self.count).index_add_(0, new, values[old])

    def mean(self, values: Tensor) -> Tensor:
        """The same; the mean where there are several."""
        return self.total(values) / self.total(torch.ones_like(values))


def origin_of(before: Hypergraph, after: Hypergraph, gates: Gates) -> Origin:
    """Which channel of `before` each channel of `after` was, read off the parameters they share."""
    alive = gates.living()
    origin: dict[tuple[str, int], list[int]] = {}  # (parameter, axis) -> old channel at each surviving position
    for index, edge in enumerate(before.edges):
        for member in edge.members:
            places = origin.setdefault((member.parameter, member.axis), [-2] * len(member.units))
            for position, unit in enumerate(member.units):
                if unit >= 0:
                    channel = int(gates.starts[index]) + unit
                    places[position] = channel if alive[channel] else -1
    survivors = {key: [channel for channel in places if channel != -1] for key, places in origin.items()}
    pairs: set[tuple[int, int]] = set()
    for index, edge in enumerate(after.edges):
        for member in edge.members:
            places = survivors.get((member.parameter, member.axis), [])
            if len(places) == len(member.units):
                start = int(after.starts[index])
                found = zip(member.units, places, strict=True)
                pairs.update((start + unit, channel) for unit, channel in found if unit >= 0 and channel >= 0)
    new, old = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    count = int(after.starts[-1])
    if len(np.unique(new)) != count:
        missing = int(np.setdiff1d(np.arange(count), new)[0])
        edge = after.edges[int(np.searchsorted(after.starts, missing, side="right")) - 1]
        raise GatorError(f"edge {edge.name!r} of the smaller network was not found in the larger one; please report this")
    return Origin(new, old, count)


def traced_again(model: nn.Module, graph: Hypergraph) -> Hypergraph:
    """The graph of the smaller network, traced with the settings of the larger one, as far as the names in them still exist."""
    modules = {name for name, _ in model.named_modules()} | {name for name, _ in model.named_parameters()}
    heads = graph.heads if isinstance(graph.heads, str) else {k: v for k, v in graph.heads.items() if k in modules}
    fixed = tuple(name for name in graph.fixed if name in modules)
    found = trace_inputs(model, graph.inputs, fixed=fixed, heads=heads, keep_class=graph.keep_class)
    # A layer with a single head left has other edges than before, which its class may need.
    return kept_in_class(model, found) if graph.keep_class else found
