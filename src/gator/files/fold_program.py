"""Fold the batch norms of an exported program into the convolutions and linear layers before them.

Unlike surgery/fold.py, which keeps modules for training, this works on operators: it folds whatever torch.export can record.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

aten = torch.ops.aten
_OUTPUT_AXIS = {  # of the weight, for a layer with one group
    aten.conv1d.default: 0,
    aten.conv2d.default: 0,
    aten.conv3d.default: 0,
    aten.linear.default: 0,
    aten.conv_transpose2d.input: 1,
}
_GROUPS = {aten.conv_transpose2d.input: 6}  # the position of `groups`, where the axis depends on it


def fold_(module: fx.GraphModule) -> int:
    """Fold every batch norm that follows a layer and nothing else reads; returns how many were folded.

    `module` is `torch.export.export(...).module()` of a network in eval mode, and is changed.
    """
    count = 0
    for norm in list(module.graph.nodes):
        found = _Foldable.of(module, norm)
        if found is not None:
            found.fold_(f"folded_{count}")
            count += 1
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    _drop_unused_tensors(module)
    module.recompile()
    return count


@dataclass(frozen=True)
class _Foldable:
    """A batch norm right after a layer; the layer's weight and bias, and the norm's four tensors, are constants."""

    module: fx.GraphModule
    layer: fx.Node
    norm: fx.Node

    @classmethod
    def of(cls, module: fx.GraphModule, norm: fx.Node) -> _Foldable | None:
        if norm.op != "call_function" or norm.target is not aten.batch_norm.default:
            return None
        layer = norm.args[0]
        if not isinstance(layer, fx.Node) or layer.target not in _OUTPUT_AXIS or len(layer.users) > 1:
            return None
        groups = _GROUPS.get(layer.target)
        if groups is not None and len(layer.args) > groups and layer.args[groups] != 1:
            return None
        constants = [*layer.args[1:3], *norm.args[1:5]]
        is_constant = all(each is None or (isinstance(each, fx.Node) and each.op == "get_attr") for each in constants)
        has_statistics = norm.args[3] is not None and norm.args[4] is not None and norm.args[5] is False
        return cls(module, layer, norm) if is_constant and has_statistics else None

    def fold_(self, name: str) -> None:
        weight, bias = self._tensor(self.layer, 1), self._tensor(self.layer, 2)
        gamma, beta, mean, variance = (self._tensor(self.norm, place) for place in range(1, 5))
        assert weight is not None
        assert mean is not None
        assert variance is not None
        axis = _OUTPUT_AXIS[self.layer.target]  # type: ignore[index]
        scale = (variance.double() + float(self.norm.args[7])).rsqrt()  # type: ignore[arg-type]
        scale = scale if gamma is None else scale * gamma.double()
        shift = (0.0 if bias is None else bias.double()) - mean.double()
        shift = shift * scale if beta is None else shift * scale + beta.double()
        shape = [1] * weight.ndim
        shape[axis] = -1
        new = {"weight": (weight.double() * scale.reshape(shape)).to(weight.dtype), "bias": shift.to(weight.dtype)}
        with self.module.graph.inserting_before(self.layer):
            nodes = []
            for kind, tensor in new.items():
                self.module.register_parameter(f"{name}_{kind}", nn.Parameter(tensor, requires_grad=False))
                nodes.append(self.module.graph.get_attr(f"{name}_{kind}"))
        self.layer.args = (self.layer.args[0], *nodes, *self.layer.args[3:])
        self.norm.replace_all_uses_with(self.layer)
        self.module.graph.erase_node(self.norm)

    def _tensor(self, node: fx.Node, place: int) -> Tensor | None:
        constant = node.args[place] if place < len(node.args) else None
        if not isinstance(constant, fx.Node):
            return None
        owner, _, attribute = str(constant.target).rpartition(".")
        found: Tensor = getattr(self.module.get_submodule(owner), attribute)
        return found.detach()


def _drop_unused_tensors(module: fx.GraphModule) -> None:
    """Remove parameters and buffers that no operator reads any more, so that they do not end up in the file."""
    used = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for name, _ in [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]:
        if name not in used:
            owner, _, attribute = name.rpartition(".")
            delattr(module.get_submodule(owner), attribute)
