"""Constants of closed branches go into a neighbouring bias where there is one, so that nothing is left of the branch.

`shortcut(x) + c`, where the shortcut ends in a layer with a bias, is the shortcut with another bias. That holds in train
mode as in eval mode, so it is done only where both graphs show the same pattern. Elsewhere the constant stays.
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


def absorb_(graphs: Sequence[fx.Graph], objects: dict[str, Any], constants: Iterable[str]) -> frozenset[str]:
    """Fold every constant that can be folded into the layer beside it, in all graphs at once; returns their names."""
    absorbed: set[str] = set()
    names = list(dict.fromkeys(constants))
    while True:
        found = [name for name in names if name not in absorbed and _absorbed_(graphs, objects, name)]
        if not found:
            return frozenset(absorbed)
        absorbed.update(found)


def _absorbed_(graphs: Sequence[fx.Graph], objects: dict[str, Any], name: str) -> bool:
    places = [_place(graph, name, objects) for graph in graphs]
    if any(place is None for place in places) or len({place[1].target for place in places if place}) != 1:
        return False
    layer = objects[str(places[0][1].target)]  # type: ignore[index]
    with torch.no_grad():
        layer.bias.add_(objects[name].reshape(-1))
    del objects[name]
    for graph, place in zip(graphs, places, strict=True):
        assert place is not None
        constant, beside, total = place
        total.replace_all_uses_with(beside)
        graph.erase_node(total)
        graph.erase_node(constant)
    return True


def _place(graph: fx.Graph, name: str, objects: Mapping[str, Any]) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """(constant, layer, sum) if the constant is only ever added to the result of a layer that nobody else reads."""
    nodes = [n for n in graph.nodes if n.op == "get_attr" and n.target == name]
    if len(nodes) != 1 or len(nodes[0].users) != 1:
        return None
    (constant,) = nodes
    (total,) = constant.users
    if total.target not in _ADDS or len(total.args) != 2 or total.kwargs:
        return None
    (beside,) = [a for a in total.args if a is not constant] or [None]
    if not isinstance(beside, fx.Node) or beside.op != "call_module" or len(beside.users) != 1:
        return None
    layer = objects.get(str(beside.target))
    called = sum(n.op == "call_module" and n.target == beside.target for n in graph.nodes)
    if called != 1 or not isinstance(layer, _BIASED) or layer.bias is None or _shared(layer.bias, objects):
        return None
    return (constant, beside, total) if _one_a_channel(objects[name], layer) else None


def _shared(bias: torch.Tensor, objects: Mapping[str, Any]) -> bool:
    """Whether another layer has the same bias."""
    held: list[torch.Tensor] = [value for value in objects.values() if isinstance(value, torch.Tensor)]
    for module in {id(value): value for value in objects.values() if isinstance(value, nn.Module)}.values():
        held += [parameter for _, parameter in module.named_parameters(recurse=False, remove_duplicate=False)]
    return sum(memory_of(other) == memory_of(bias) for other in held) > 1


def _one_a_channel(constant: torch.Tensor, layer: nn.Module) -> bool:
    """Whether the constant is one number for each position of the layer's bias, on the axis the bias is added to."""
    bias: Any = layer.bias
    shape = list(constant.shape)
    if isinstance(layer, nn.Linear):
        return shape[-1:] == [len(bias)] and all(size == 1 for size in shape[:-1])
    return len(shape) > 1 and shape[1] == len(bias) and all(size == 1 for i, size in enumerate(shape) if i != 1)
