"""Segments put together again are the network, whatever it is made of; and each can be built at other widths."""

from __future__ import annotations

import pytest
import torch
from networks import CASES

import gator
from gator.cost.latency.layers.fused_layers import fused_layers_of
from gator.cost.latency.layers.standalone import Standalone
from gator.cost.latency.runtimes.run_setup import checked_setup
from gator.cost.latency.table.step_patterns import LayerSteps, StepPattern
from gator.cost.latency.table.time_grid import grid_points
from gator.graph.inputs import as_call
from gator.graph.program import Ref
from gator.private_torch import pytree

SETUP = checked_setup("eager", "cpu", 1, "float32", False, None)


# Circular padding writes into views of a tensor that another layer reads: the pieces run, but not one after the other.
WRITTEN_THROUGH_VIEWS = ("padding_modes",)


@pytest.mark.parametrize("name", [name for name in CASES if name not in WRITTEN_THROUGH_VIEWS])
def test_segments_put_together_are_the_network(name) -> None:
    model, inputs, _ = CASES[name]()
    model.eval()
    graph = gator.trace(model, inputs)
    program = graph.eval.program
    args, kwargs = as_call(inputs)
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    values = dict(zip(program.inputs, (tensor.clone() for tensor in tensors), strict=True))
    waiting = list(fused_layers_of(graph))
    with torch.no_grad():
        while waiting:
            ready = [layer for layer in waiting if all(value in values for value in layer.inputs)]
            assert ready, f"{waiting[0].name} reads a value that no layer writes"
            for layer in ready:
                network, _ = Standalone(model, graph, layer).built(layer.full, SETUP)
                values.update(zip(layer.outputs, network(*(values[v].clone() for v in layer.inputs)), strict=True))
                waiting.remove(layer)
        expected = [leaf for leaf in pytree.tree_leaves(model(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    found = [values[leaf.id] for leaf in program.outputs[0] if isinstance(leaf, Ref)]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_segments_run_at_other_widths(name) -> None:
    model, inputs, _ = CASES[name]()
    graph = gator.trace(model.eval(), inputs)
    for layer in fused_layers_of(graph):
        for point in sorted(grid_points(layer.full, LayerSteps(StepPattern(4, 2), StepPattern(4, 2)))):
            network, call = Standalone(model, graph, layer).built(point, SETUP)
            with torch.no_grad():
                network(*call[0])
