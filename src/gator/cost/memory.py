"""`Memory`: bytes of the parameters and buffers of a network (eq. 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from gator.cost.measure import bytes_of
from gator.cost.polynomial import Polynomial, Sum
from gator.cost.prices import Cost, Widths
from gator.graph.bake import baked
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import MODES, Mode
from gator.graph.trace import named_tensors, retraced


@dataclass(frozen=True)
class Memory(Cost):
    """Bytes of parameters and buffers: the size of the network in a file, or in memory without activations."""

    unit = "bytes"

    def on(self, model: nn.Module, graph: Hypergraph) -> Bytes:
        graph = retraced(graph, model)
        readers: dict[str, list[tuple[Mode, int]]] = {}
        for mode, labelled in zip(MODES, graph.programs, strict=True):
            names = {v.id: v.name for v in labelled.program.values if v.origin == "attribute"}
            for call in labelled.program.calls:
                for _, value in call.tensors():
                    if value in names and call.mutates != value:
                        readers.setdefault(names[value], []).append((mode, call.index))
        terms, seen = [], set()
        for name, tensor in named_tensors(baked(model)).items():
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            axes = graph.attributes.get(name, (None,) * tensor.ndim)
            fixed = math.prod(size for size, labels in zip(tensor.shape, axes, strict=True) if labels is None)
            labelled_axes = tuple(labels for labels in axes if labels is not None)
            terms.append(Sum(float(fixed * tensor.element_size()), labelled_axes, tuple(readers.get(name, ()))))
        return Bytes(graph, terms, self.unit)


class Bytes(Polynomial):
    """Bytes by widths. A removed block may leave a constant behind, which is counted only in the finished network."""

    def measure(self, network: nn.Module, widths: Widths) -> float:  # noqa: ARG002
        """The bytes of a finished network."""
        return float(bytes_of(network))
