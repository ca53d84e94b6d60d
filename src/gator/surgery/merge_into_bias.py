"""Add the constants of removed branches to the bias of a neighbouring layer, so that nothing remains of the branch.

In `shortcut(x) + c`, if the shortcut ends in a layer with a bias, the constant can be added to that bias. This is done only
where the train graph and the eval graph have the same pattern. Elsewhere the constant stays a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from gator.graph.tensor_identity import memory_of
from gator.private_torch import BatchNorm, Conv

aten = torch.ops.aten
_ADDS = (aten.add.Tensor, aten.add_.Tensor)
_BIASED = (Conv, nn.Linear, BatchNorm)


def merge_into_bias_(graphs: Sequence[fx.Graph], objects: dict[str, Any], constants: Iterable[str]) -> frozenset[str]:
    """Merge every constant that can be merged into the layer it is added to, in all graphs at once; returns their names."""
    merged: set[str] = set()
    names = list(dict.fromkeys(constants))
    while True:
        found = [name for name in names if name not in merged and _merged_(graphs, objects, name)]
        if not found:
            return frozenset(merged)
        merged.update(found)


def _merged_(graphs: Sequence[fx.Graph], objects: dict[str, Any], name: str) -> bool:
    patterns = [_pattern(graph, name, objects) for graph in graphs]
    if any(pattern is None for pattern in patterns) or len({pattern[1].target for pattern in patterns if pattern}) != 1:
        return False
    layer = objects[str(patterns[0][1].target)]  # type: ignore[index]
    with torch.no_grad():
        layer.bias.add_(objects[name].reshape(-1))
    del objects[name]
    for graph, pattern in zip(graphs, patterns, strict=True):
        assert pattern is not None
        constant, layer_node, total = pattern
        total.replace_all_uses_with(layer_node)
        graph.erase_node(total)
        graph.erase_node(constant)
    return True


def _pattern(graph: fx.Graph, name: str, objects: Mapping[str, Any]) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """(constant, layer, sum) if the constant is only added to the output of a layer, and nothing else uses that output."""
    nodes = [n for n in graph.nodes if n.op == "get_attr" and n.target == name]
    if len(nodes) != 1 or len(nodes[0].users) != 1:
        return None
    (constant,) = nodes
    (total,) = constant.users
    if total.target not in _ADDS or len(total.args) != 2 or total.kwargs:
        return None
    (layer_node,) = [a for a in total.args if a is not constant] or [None]
    if not isinstance(layer_node, fx.Node) or layer_node.op != "call_module" or len(layer_node.users) != 1:
        return None
    layer = objects.get(str(layer_node.target))
    called = sum(n.op == "call_module" and n.target == layer_node.target for n in graph.nodes)
    if called != 1 or not isinstance(layer, _BIASED) or layer.bias is None or _shared(layer.bias, objects):
        return None
    return (constant, layer_node, total) if _is_per_channel(objects[name], layer) else None


def _shared(bias: torch.Tensor, objects: Mapping[str, Any]) -> bool:
    """Whether another layer has the same bias."""
    held: list[torch.Tensor] = [value for value in objects.values() if isinstance(value, torch.Tensor)]
    for module in {id(value): value for value in objects.values() if isinstance(value, nn.Module)}.values():
        held += [parameter for _, parameter in module.named_parameters(recurse=False, remove_duplicate=False)]
    return sum(memory_of(other) == memory_of(bias) for other in held) > 1


def _is_per_channel(constant: torch.Tensor, layer: nn.Module) -> bool:
    """Whether the constant has one value per channel, on the axis that the bias is added to."""
    bias: Any = layer.bias
    shape = list(constant.shape)
    if isinstance(layer, nn.Linear):
        return shape[-1:] == [len(bias)] and all(size == 1 for size in shape[:-1])
    return len(shape) > 1 and shape[1] == len(bias) and all(size == 1 for i, size in enumerate(shape) if i != 1)
