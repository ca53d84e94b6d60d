"""`CutEmitter`: the graph of a cut network, with the remaining calls, new sizes, and constants in place of removed branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from gator.graph.program import Call, Mode, Ref
from gator.private_torch import overload_name_of, schema_of
from gator.surgery.branch_constants import SUMS, ConstantFolder
from gator.surgery.cut_plan import Term
from gator.surgery.emit import Emitter
from gator.surgery.layers import Leaf
from gator.surgery.plan import Plan
from gator.surgery.rewrite import rewritten
from gator.surgery.slice import narrowed

aten = torch.ops.aten


class CutEmitter(Emitter):
    """Refers to the layers and parameters of a sliced model."""

    def __init__(self, plan: Plan, mode: Mode, model: nn.Module, canonical: Mapping[str, str], folder: ConstantFolder) -> None:
        super().__init__(plan, mode, model, canonical)
        self._folder = folder

    def wanted(self, call: Call) -> bool:
        return call.index in self.liveness.live

    def gone(self, value: int) -> bool:
        return value in self.liveness.empty

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
        """Every new node stores the name of the call it was made from; attributes were inserted at the start of the graph."""
        super()._emit(call)
        for node in reversed(self.graph.nodes):
            if "origin" in node.meta or node.op == "placeholder":
                break
            node.meta["origin"] = self.call_names[call.index]

    def node(self, value: int) -> fx.Node:
        if value in self.liveness.folded and value not in self._nodes:
            self._nodes[value] = self._constant_node(value)
        return super().node(value)

    def write(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        if leaf is None:
            if call.mutates is not None and call.mutates in self.liveness.folded:
                return self._out_of_place(call, args)
            return rewritten(self, call, args)
        return self.plain(call, leaf, args)

    def instead(self, call: Call) -> fx.Node | None:
        """For a sum with a term that is zero because its branch was removed: the other term."""
        if call.packet not in SUMS or not all(isinstance(call.args[name], Ref) for name in ("self", "other")):
            return None
        pairs: list[tuple[Term, Term]] = [("self", "other")]
        if call.packet in (aten.add, aten.add_) and "alpha" not in call.args:
            pairs.append(("other", "self"))
        for name, term in pairs:
            rest, result = call.value_at(name), call.outputs[0] or 0
            same_shape = self.shape(rest) == self.shape(result) and rest not in self.liveness.folded
            if same_shape and self._folder.omits(self, call, term):
                node = self.node(rest)
                storages = {self.program.values[v].storage for v in (rest, call.value_at(term), result)}
                written = any(
                    c.index > call.index and c.mutates is not None and self.program.values[c.mutates].storage in storages
                    for c in self.program.calls
                )
                return self.graph.call_function(aten.clone.default, (node,)) if written else node
        return None

    def _out_of_place(self, call: Call, args: dict[str, Any]) -> fx.Node:
        """For an in-place call on a value that has become a constant: the same operator out of place."""
        name = schema_of(call.op).name.removeprefix("aten::").rstrip("_")
        plain = getattr(getattr(aten, name), overload_name_of(call.op))
        return self.call_op(plain, args)

    def _constant_node(self, value: int) -> fx.Node:
        name, tensor, needs_expand = self._folder.constant(self, value)
        node = self._attributes.get(name) or self.new_attribute(name, tensor)
        self._attributes[name] = node
        if not needs_expand:
            return node
        return self.graph.call_function(aten.expand.default, (node, [self.size(s) for s in self.shape(value)]))
