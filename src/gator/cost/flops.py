"""`Flops`: multiply-adds of one forward pass of the example inputs, from traced shapes (eq. 6)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from gator.cost.polynomial import Polynomial, Sum
from gator.cost.prices import Cost
from gator.graph.hypergraph import Hypergraph
from gator.graph.macs import products
from gator.graph.program import needed
from gator.graph.trace import retraced


@dataclass(frozen=True)
class Flops(Cost):
    """Multiply-adds of one forward pass in eval mode; a multiply-add (MAC) is two FLOPs."""

    unit = "MACs"

    def on(self, model: nn.Module, graph: Hypergraph) -> Polynomial:
        return macs_of(retraced(graph, model))


def macs_of(graph: Hypergraph) -> Polynomial:
    """The multiply-adds of the traced network."""
    labelled = graph.eval
    program = labelled.program
    share = graph.inputs.batch / program.batch if program.batch and graph.inputs.batch else 1.0
    live = needed(program)

    def term(call: int, factors: tuple[tuple[int, int], ...]) -> Sum:
        scale, axes = share, []
        for value, axis in factors:
            labels = labelled.axes[value][axis]
            if labels is None:
                scale *= int(program.values[value].shape[axis])
            else:
                axes.append(labels)
        return Sum(scale, tuple(axes), (("eval", call),))

    shapes = [value.shape for value in program.values]
    calls = [call for call in program.calls if call.index in live]
    return Polynomial(graph, [term(c.index, p) for c in calls for p in products(c, lambda v: shapes[v])], Flops.unit)
