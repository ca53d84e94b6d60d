"""Write a program back as an fx graph: whole with masks (`masked`), or with only what is left (`cut`).

Calls of leaf layers become calls of the layers themselves, so the result trains, evaluates and keeps its state_dict names.
Every other call is the operator it was, its size arguments rewritten for the channels that are left.
"""

from __future__ import annotations

import operator
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from gator.errors import CutError
from gator.graph.labels import Axis
from gator.graph.program import BatchInt, Call, Program, Ref, map_refs
from gator.surgery import living
from gator.surgery.fate import DROPOUTS, Fate, check_connected, decide
from gator.surgery.fold import Folder, is_zero
from gator.surgery.layers import Leaf, leaves_of
from gator.surgery.plan import Mask, Plan
from gator.surgery.rewrite import REWRITES, memory_is_written

aten = torch.ops.aten
_FILL = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
_LIVING: dict[Any, Callable[..., Any]] = {
    aten.mean: living.mean, aten.var: living.var, aten.std: living.std, aten.var_mean: living.var_mean,
    aten.std_mean: living.std_mean,
}  # fmt: skip


class Flag(nn.Module):
    """Says whether another module is in train mode."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = (module,)  # in a tuple, so that it does not become a part of this one

    def forward(self) -> bool:
        return self._module[0].training


class Emitter:
    """Builds the graph of one program. `objects` collects what it refers to: target name -> module or tensor."""

    def __init__(
        self, plan: Plan, index: int, model: nn.Module, canonical: dict[str, str], folder: Folder | None, *, masked: bool
    ) -> None:
        self.plan = plan
        self.index = index
        self.model = model
        self.masked = masked
        self.labelled = plan.analysed.programs[index]
        self.program: Program = self.labelled.program
        self.fate: Fate = decide(plan, index)
        self.folder = folder
        self._leaves = leaves_of(model, self.program, canonical)
        self.graph = fx.Graph()
        self.objects: dict[str, Any] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._attributes: dict[str, fx.Node] = {}
        self._batch: fx.Node | None = None
        self._sizes: dict[tuple[int, int], fx.Node] = {}
        check_connected(plan, index, self.fate)

    def emit(self) -> fx.Graph:
        for value in self.program.inputs:
            self._nodes[value] = self.graph.placeholder(self.program.values[value].name)
        self._first_input = self._nodes[self.program.inputs[0]]
        self._batched_input()
        for call in self.program.calls:
            if self.masked or call.index in self.fate.live:
                self._emit(call)
        leaves = [map_refs(leaf, lambda ref: self.node(ref.id)) for leaf in self.program.outputs[0]]
        structure = self.program.outputs[1]
        self.graph.output(pytree.tree_unflatten(leaves, structure) if is_native(structure) else tuple(leaves))
        self._sweep()
        return self.graph

    def _batched_input(self) -> None:
        for value in self.program.inputs:
            shape = self.program.values[value].shape
            if shape and isinstance(shape[0], BatchInt):
                self._first_input = self._nodes[value]
                return

    def _sweep(self) -> None:
        """Drop nodes nobody reads, except those that write into something."""
        for node in reversed(list(self.graph.nodes)):
            if node.op in ("placeholder", "output") or node.users:
                continue
            writes = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
            if not writes:
                self.graph.erase_node(node)
        used = {node.target for node in self.graph.nodes if node.op in ("get_attr", "call_module")}
        self.objects = {name: value for name, value in self.objects.items() if name in used}

    # What rewrites and masks ask for.

    def alive(self, value: int, axis: int) -> Mask | None:
        return self.plan.alive(self.labelled.axes[value][axis])

    def axes(self, value: int) -> tuple[Axis, ...]:
        return self.labelled.axes[value]

    def shape(self, value: int) -> tuple[int, ...]:
        return self.program.values[value].shape if self.masked else self.plan.shape(self.index, value)

    def touched(self, call: Call) -> bool:
        values = [v for _, v in call.tensors()] + [v for v in call.outputs if v is not None]
        return any(self.plan.alive(labels) is not None for v in values for labels in self.labelled.axes[v])

    def size(self, size: int) -> int | fx.Node:
        """A size as an argument: a number, or computed from the batch."""
        if not isinstance(size, BatchInt):
            return int(size)
        key = (size.slope, size.offset)
        if key not in self._sizes:
            if self._batch is None:
                # First in the graph, so that every size computed from it comes after.
                with self.graph.inserting_after(self._last_placeholder()):
                    self._batch = self.graph.call_function(aten.sym_size.int, (self._first_input, 0))
                self._batch_end = self._batch
            node = self._batch
            with self.graph.inserting_after(self._batch_end):
                if size.slope != 1:
                    node = self.graph.call_function(operator.mul, (node, size.slope))
            if node is not self._batch:
                self._batch_end = node
            if size.offset:
                with self.graph.inserting_after(self._batch_end):
                    node = self.graph.call_function(operator.add, (node, size.offset))
                self._batch_end = node
            self._sizes[key] = node
        return self._sizes[key]

    def _last_placeholder(self) -> fx.Node:
        return self._nodes[self.program.inputs[-1]]

    def sizes(self, value: int) -> list[Any]:
        """The shape of a value as a list of arguments; a single size that follows the batch is left open."""
        shape = self.shape(value)
        if sum(isinstance(s, BatchInt) for s in shape) == 1 and 0 not in shape:
            return [-1 if isinstance(s, BatchInt) else int(s) for s in shape]
        return [self.size(s) for s in shape]

    def node(self, value: int) -> fx.Node:
        if value not in self._nodes:
            found = self.program.values[value]
            if value in self.fate.folded:
                self._nodes[value] = self._materialised(value)
            elif found.origin == "attribute":
                return self.attribute(found.name)
            elif found.origin == "constant":
                return self._constant(found.name, value)
            else:
                raise CutError(f"value {value} ({found.name}) is needed but was not computed; please report this")
        return self._nodes[value]

    def attribute(self, name: str) -> fx.Node:
        if name not in self._attributes:
            owner, _, attribute = name.rpartition(".")
            tensor = getattr(self.model.get_submodule(owner), attribute)
            self._attributes[name] = self.new_attribute(name, tensor)
        return self._attributes[name]

    def new_attribute(self, name: str, tensor: Any) -> fx.Node:
        self.objects[name] = tensor
        first = (
            next(n for n in self.graph.nodes if n.op != "placeholder")
            if len(self.graph.nodes) > len(self.program.inputs)
            else None
        )
        if first is None:
            return self.graph.get_attr(name)
        with self.graph.inserting_before(first):
            return self.graph.get_attr(name)

    def _constant(self, name: str, value: int) -> fx.Node:
        key = f"{name}_{'train' if self.program.training else 'eval'}"
        if key not in self._attributes:
            tensor = self.program.constants[name]
            if not self.masked:
                from gator.surgery.slice import narrowed

                tensor = narrowed(tensor, [self.alive(value, axis) for axis in range(tensor.ndim)])
            reference = next(self.model.parameters(), None)
            if reference is not None:
                tensor = tensor.to(reference.device)
            self._attributes[key] = self.new_attribute(key, tensor)
        return self._attributes[key]

    def index_tensor(self, positions: Any, name: str) -> fx.Node:
        reference = next(self.model.parameters(), None)
        tensor = torch.as_tensor(positions)
        return self.new_attribute(name, tensor if reference is None else tensor.to(reference.device))

    # Calls.

    def _emit(self, call: Call) -> None:
        leaf = self._leaves.get(call.module)
        if call.mutates is not None and self._kept_by_a_layer(call):
            return
        if not self.masked and leaf is None and call.packet in (aten.add, aten.add_, aten.sub, aten.sub_):
            rest = self._beside_nothing(call)
            if rest is not None:
                self._bind(call, rest)
                return
        args = {name: self._argument(arg) for name, arg in call.args.items() if not self._dropped(call, name)}
        if self.program.training and leaf is None:
            args = self._own_flag(call, args)
        if call.frozen and call.mutates is not None:
            args = {name: self._detached(arg) if name != "self" else arg for name, arg in args.items()}
        emit = self._emit_masked if self.masked else self._emit_cut
        self._bind(call, emit(call, leaf, args))
        if call.frozen and call.mutates is None:
            for value in call.outputs:
                if value in self._nodes:
                    self._nodes[value] = self._detached(self._nodes[value])

    def _detached(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node) and arg.op != "placeholder":
            return self.graph.call_function(aten.detach.default, (arg,))
        return arg

    def _own_flag(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """A layer that is frozen (in eval inside a network in training) asks its own flag, as its code does."""
        name = "training" if call.packet is aten.batch_norm and "running_mean" in args else "train"
        if args.get(name) is not True or not call.module or args.get("running_mean", 0) is None:
            return args
        if self.masked:
            key = "_flag_" + call.module.replace(".", "_")
            self.objects[key] = Flag(self.model.get_submodule(call.module))
            return {**args, name: self.graph.call_module(key, ())}
        key = f"{call.module}.training"
        self.objects[key] = self.model.get_submodule(call.module).training
        return {**args, name: self.graph.get_attr(key)}

    def _dropped(self, call: Call, name: str) -> bool:
        """Lists lose their empty parts in the rewrite; a single empty argument has no node."""
        arg = call.args[name]
        return not self.masked and isinstance(arg, Ref) and arg.id in self.fate.empty

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return self.node(arg.id)
        if isinstance(arg, BatchInt):
            return self.size(arg)
        if isinstance(arg, (list, tuple)):
            empty = () if self.masked else self.fate.empty
            return [self._argument(item) for item in arg if not (isinstance(item, Ref) and item.id in empty)]
        if isinstance(arg, torch.device):
            return self.graph.call_function(getattr, (self._first_input, "device"))
        return arg

    def _kept_by_a_layer(self, call: Call) -> bool:
        """Batch counters that the layer itself advances when it is called."""
        assert call.mutates is not None
        target = self.program.values[call.mutates]
        if target.origin != "attribute" or not call.module:
            return False
        module = self.model.get_submodule(call.module)
        return type(module).forward in (nn.modules.batchnorm._BatchNorm.forward, nn.modules.instancenorm._InstanceNorm.forward)

    def call_op(self, op: Any, args: dict[str, Any]) -> fx.Node:
        """The operator with arguments by name, positional as far as they go."""
        positional, keywords, gap = [], {}, False
        for argument in op._schema.arguments:
            if argument.name not in args:
                gap = True
                continue
            if gap or argument.kwarg_only:
                keywords[argument.name] = args[argument.name]
            else:
                positional.append(args[argument.name])
        return self.graph.call_function(op, tuple(positional), keywords)

    def _plain(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> fx.Node:
        if leaf is not None:
            self.objects[call.module] = self.model.get_submodule(call.module)
            return self.graph.call_module(call.module, (args[leaf.data],))
        if call.packet in (aten.view, aten._unsafe_view) and not memory_is_written(self, call):
            # A masked or selected tensor may lie differently in memory; the meaning is the same.
            return self.graph.call_function(aten.reshape.default, (args["self"], args["size"]))
        return self.call_op(call.op, args)

    def _emit_cut(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        if leaf is None:
            if call.mutates is not None and call.mutates in self.fate.folded:
                return self._out_of_place(call, args)
            rewrite = REWRITES.get(call.packet)
            if rewrite is not None:
                return rewrite(self, call, args)
        return self._plain(call, leaf, args)

    def _beside_nothing(self, call: Call) -> fx.Node | None:
        """The other term of a sum whose one term is zero because nothing is left to compute it from."""
        one, other = call.args["self"], call.args["other"]
        if not isinstance(other, Ref) or not isinstance(one, Ref):
            return None
        pairs = [(one, other)] + ([(other, one)] if call.packet in (aten.add, aten.add_) and "alpha" not in call.args else [])
        for rest, nothing in pairs:
            whole = self.shape(rest.id) == self.shape(call.outputs[0] or 0) and rest.id not in self.fate.folded
            if whole and nothing.id in self.fate.folded and is_zero(self, nothing.id):
                node = self.node(rest.id)
                storages = {self.program.values[v].storage for v in (one.id, other.id, call.outputs[0] or 0)}
                written = any(
                    c.index > call.index and c.mutates is not None and self.program.values[c.mutates].storage in storages
                    for c in self.program.calls
                )
                return self.graph.call_function(aten.clone.default, (node,)) if written else node
        return None

    def _out_of_place(self, call: Call, args: dict[str, Any]) -> fx.Node:
        """An in-place call on what has become a constant: the same operator, with a new result."""
        name = call.op._schema.name.removeprefix("aten::").rstrip("_")
        plain = getattr(getattr(aten, name), call.op._overloadname)
        return self.call_op(plain, args)

    def _emit_masked(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        found = [(read, self._dead(call, read)) for read in self.labelled.reads.get(call.index, ())]
        reads = [(read, dead) for read, dead in found if dead is not None]
        if call.packet is aten.batch_norm and isinstance(call.args["input"], Ref) and call.args["input"].id in self.fate.folded:
            # Fed by constants only: there is no batch to take statistics from.
            return self.call_op(call.op, {**args, "training": False})
        if call.packet in DROPOUTS:
            (name, _), value = next(call.tensors())
            if value in self.fate.folded:
                return args[name]  # nor anything to drop
        for read, dead in reads:
            name, position = read.argument
            fill = _FILL.get(read.kind)
            if fill is None:
                continue
            target = args[name] if position is None else args[name][position]
            masked = self.graph.call_function(aten.masked_fill.Scalar, (target, dead, fill))
            if position is None:
                args[name] = masked
            else:
                args[name][position] = masked
                leaf = None
        special = [(read, dead) for read, dead in reads if read.kind not in _FILL]
        if special:
            return self._over_the_living(call, args, special)
        return self._plain(call, leaf, args)

    def _dead(self, call: Call, read: Any) -> fx.Node | None:
        name, position = read.argument
        arg = call.args[name]
        value = arg.id if position is None else arg[position].id
        alive = self.alive(value, read.axis)
        if alive is None:
            return None
        shape = self.program.values[value].shape
        tail = [1] * (len(shape) - read.axis - 1)
        size = shape[read.axis]
        key = f"_dead_{self.index}_{call.index}_{name}_{position}_{read.axis}"
        if isinstance(size, BatchInt):
            batch = self.program.batch or 1
            times = self.size(BatchInt(1, 0, batch))
            if (alive == np.tile(alive[: size.slope], batch)).all():
                node = self.index_tensor(~alive[: size.slope], key)
                node = self.graph.call_function(aten.repeat.default, (node, [times]))
            else:  # the batch is the inner factor; by construction there is no third way
                node = self.index_tensor(~alive[::batch], key)
                node = self.graph.call_function(aten.repeat_interleave.self_int, (node, times))
            return self.graph.call_function(aten.reshape.default, (node, [-1, *tail]))
        return self.index_tensor((~alive).reshape(-1, *tail), key)

    def _over_the_living(self, call: Call, args: dict[str, Any], reads: list[tuple[Any, fx.Node]]) -> Any:
        dead = reads[0][1]
        for _, other in reads[1:]:
            dead = self.graph.call_function(aten.logical_or.default, (dead, other))
        get = args.get
        parts: tuple[Any, ...]
        if call.packet is aten.layer_norm:
            parts = (args["input"], dead, args["normalized_shape"], get("weight"), get("bias"), get("eps", 1e-5))
            return self.graph.call_function(living.layer_norm, parts)
        if call.packet is aten.rms_norm:
            parts = (args["input"], dead, args["normalized_shape"], get("weight"), get("eps"))
            return self.graph.call_function(living.rms_norm, parts)
        if call.packet in (aten.batch_norm, aten.instance_norm):
            statistics = (get("running_mean"), get("running_var"), get("momentum", 0.1), get("eps", 1e-5))
            dims = [
                d for d in range(len(self.shape(call.args["input"].id))) if d != 1 and (d or call.packet is aten.batch_norm)
            ]
            parts = (args["input"], dead, dims, get("weight"), get("bias"), *statistics)
            return self.graph.call_function(living.batch_norm, parts)
        if call.packet is aten.group_norm:
            parts = (args["input"], dead, args["num_groups"], get("weight"), get("bias"), get("eps", 1e-5))
            return self.graph.call_function(living.group_norm, parts)
        keywords = {name: arg for name, arg in args.items() if name in ("keepdim", "correction", "dtype")}
        if "unbiased" in args:
            keywords["correction"] = 1 if args["unbiased"] else 0
        return self.graph.call_function(_LIVING[call.packet], (args["self"], dead, get("dim")), keywords)

    def _bind(self, call: Call, result: Any) -> None:
        if isinstance(result, dict):  # output position -> node, from rewrites that know
            for position, node in result.items():
                value = call.outputs[position]
                if value is not None:
                    self._nodes[value] = node
            return
        if len(call.op._schema.returns) == 1 and not _returns_list(call.op):
            value = call.outputs[0]
            if value is not None:
                self._nodes[value] = result
            return
        for position, value in enumerate(call.outputs):
            if value is not None and (self.masked or value not in self.fate.empty):
                self._nodes[value] = self.graph.call_function(operator.getitem, (result, position))

    # Constants that a closed branch leaves behind.

    def _materialised(self, value: int) -> fx.Node:
        assert self.folder is not None
        name, tensor, spread = self.folder.constant(self, value)
        node = self._attributes.get(name) or self.new_attribute(name, tensor)
        self._attributes[name] = node
        if not spread:
            return node
        return self.graph.call_function(aten.expand.default, (node, [self.size(s) for s in self.shape(value)]))


def is_native(structure: pytree.TreeSpec) -> bool:
    """Whether a graph can return this structure itself: a tensor, or tuples, lists and dicts of them."""
    if structure.is_leaf():
        return True
    kind = structure.type
    plain = kind in (tuple, list, dict) or kind is namedtuple or (isinstance(kind, type) and hasattr(kind, "_fields"))
    return plain and all(is_native(child) for child in structure.children())


def _returns_list(op: Any) -> bool:
    return "[]" in str(op._schema.returns[0].type) or "List" in str(op._schema.returns[0].type)
