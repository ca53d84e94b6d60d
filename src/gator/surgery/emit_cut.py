"""The graph of a cut network: only what is left, sizes rewritten, and constants where a branch was closed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from gator.graph.program import Call, Mode, Ref
from gator.private_torch import overload_name_of, schema_of
from gator.surgery.branch_constants import SUMS, Folder
from gator.surgery.emit import Emitter
from gator.surgery.layers import Leaf
from gator.surgery.plan import Plan
from gator.surgery.rewrite import rewritten
from gator.surgery.slice import narrowed

aten = torch.ops.aten


class CutEmitter(Emitter):
    """Refers to the layers and parameters of a sliced model."""

    def __init__(self, plan: Plan, mode: Mode, model: nn.Module, canonical: Mapping[str, str], folder: Folder) -> None:
        super().__init__(plan, mode, model, canonical)
        self._folder = folder

    def wanted(self, call: Call) -> bool:
        return call.index in self.fate.live

    def gone(self, value: int) -> bool:
        return value in self.fate.empty

    def shape(self, value: int) -> tuple[int, ...]:
        return self.plan.shape(self.mode, value)

    def constant(self, name: str, value: int) -> torch.Tensor:
        tensor = self.program.constants[name]
        return narrowed(tensor, [self.alive(value, axis) for axis in range(tensor.ndim)])

    def flag(self, module: str) -> fx.Node:
        key = f"{module}.training"
        self.objects[key] = self.model.get_submodule(module).training
        return self.graph.get_attr(key)

    def _emit(self, call: Call) -> None:
        """Every node says which call it was made from; arguments were put in front of them."""
        super()._emit(call)
        for node in reversed(self.graph.nodes):
            if "origin" in node.meta or node.op == "placeholder":
                break
            node.meta["origin"] = self.call_names[call.index]

    def node(self, value: int) -> fx.Node:
        if value in self.fate.folded and value not in self._nodes:
            self._nodes[value] = self._materialised(value)
        return super().node(value)

    def write(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        if leaf is None:
            if call.mutates is not None and call.mutates in self.fate.folded:
                return self._out_of_place(call, args)
            return rewritten(self, call, args)
        return self.plain(call, leaf, args)

    def instead(self, call: Call) -> fx.Node | None:
        """The other term of a sum whose one term is zero because nothing is left to compute it from."""
        if call.packet not in SUMS or not all(isinstance(call.args[name], Ref) for name in ("self", "other")):
            return None
        pairs = [("self", "other")]
        if call.packet in (aten.add, aten.add_) and "alpha" not in call.args:
            pairs.append(("other", "self"))
        for name, term in pairs:
            rest, result = call.value_at(name), call.outputs[0] or 0
            whole = self.shape(rest) == self.shape(result) and rest not in self.fate.folded
            if whole and self._folder.omits(self, call, term):
                node = self.node(rest)
                storages = {self.program.values[v].storage for v in (rest, call.value_at(term), result)}
                written = any(
                    c.index > call.index and c.mutates is not None and self.program.values[c.mutates].storage in storages
                    for c in self.program.calls
                )
                return self.graph.call_function(aten.clone.default, (node,)) if written else node
        return None

    def _out_of_place(self, call: Call, args: dict[str, Any]) -> fx.Node:
        """An in-place call on what has become a constant: the same operator, with a new result."""
        name = schema_of(call.op).name.removeprefix("aten::").rstrip("_")
        plain = getattr(getattr(aten, name), overload_name_of(call.op))
        return self.call_op(plain, args)

    def _materialised(self, value: int) -> fx.Node:
        name, tensor, spread = self._folder.constant(self, value)
        node = self._attributes.get(name) or self.new_attribute(name, tensor)
        self._attributes[name] = node
        if not spread:
            return node
        return self.graph.call_function(aten.expand.default, (node, [self.size(s) for s in self.shape(value)]))
