"""`Emitter`: write a program as an fx graph. Its subclasses are in emit_masked.py and emit_cut.py.

Calls of leaf layers become calls of the layers themselves, so the result can be trained and keeps its state_dict names. Every
other call stays the same operator.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn

from gator.errors import CutError, GatorError
from gator.graph.call_names import call_names
from gator.graph.labels import Axis
from gator.graph.program import BatchInt, Call, ImageInt, Mode, Program, Ref, map_refs
from gator.private_torch import BatchNorm, InstanceNorm, OpOverload, children_of, pytree, schema_of
from gator.surgery.layers import Leaf, leaves_of
from gator.surgery.liveness import Liveness, check_connected, liveness_of
from gator.surgery.plan import Mask, Plan
from gator.surgery.sizes import Cutting
from gator.surgery.writer import Writer

aten = torch.ops.aten


class Emitter(Writer):
    """Builds the graph of one program. `objects` collects what it refers to: target name -> module or tensor."""

    def __init__(self, plan: Plan, mode: Mode, model: nn.Module, canonical: Mapping[str, str]) -> None:
        self.plan = plan
        self.mode: Mode = mode
        self.cutting = Cutting(plan, mode)
        self.model = model
        self.labelled = plan.graph.of(mode)
        self.program: Program = self.labelled.program
        self.liveness: Liveness = liveness_of(plan, mode)
        self._leaves = leaves_of(model, self.program, canonical)
        self._reserved = canonical.keys()
        self.graph = fx.Graph()
        self.objects: dict[str, Any] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._attributes: dict[str, fx.Node] = {}
        self._sizes: dict[Any, fx.Node] = {}
        self._sizes_end: fx.Node | None = None  # the last of the nodes that compute sizes
        self.maker = {value: call for call in self.program.calls for value in call.outputs if value is not None}
        check_connected(plan, mode, self.liveness)

    @cached_property
    def call_names(self) -> dict[int, str]:
        return call_names(self.program)

    def emit(self) -> fx.Graph:
        for value in self.program.inputs:
            self._nodes[value] = self.graph.placeholder(self.program.values[value].name)
        self._first_input = self._nodes[self.program.inputs[0]]
        self._input_shape = self.program.values[self.program.inputs[0]].shape
        self._batched_input()
        for call in self.program.calls:
            if self.wanted(call):
                self._emit(call)
        leaves = [map_refs(leaf, lambda ref: self.node(ref.id)) for leaf in self.program.outputs[0]]
        structure = self.program.outputs[1]
        self.graph.output(pytree.tree_unflatten(leaves, structure) if is_native(structure) else tuple(leaves))
        self._remove_unused_nodes()
        return self.graph

    def _batched_input(self) -> None:
        for value in self.program.inputs:
            shape = self.program.values[value].shape
            if shape and isinstance(shape[0], BatchInt):
                self._first_input, self._input_shape = self._nodes[value], shape
                return

    def _remove_unused_nodes(self) -> None:
        """Remove nodes without users, except in-place operators."""
        for node in reversed(list(self.graph.nodes)):
            if node.op in ("placeholder", "output") or node.users:
                continue
            writes = isinstance(node.target, OpOverload) and schema_of(node.target).is_mutable
            if not writes:
                self.graph.erase_node(node)
        used = {node.target for node in self.graph.nodes if node.op in ("get_attr", "call_module")}
        self.objects = {name: value for name, value in self.objects.items() if name in used}

    # What subclasses override; by default nothing is removed.

    @abstractmethod
    def write(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        """The node (or nodes) of a call, from arguments that are nodes already."""

    @abstractmethod
    def flag(self, module: str) -> fx.Node:
        """Whether a module is in train mode when the graph runs."""

    def wanted(self, call: Call) -> bool:  # noqa: ARG002
        """Whether the call is part of the graph."""
        return True

    def instead(self, call: Call) -> fx.Node | None:  # noqa: ARG002
        """A node to use instead of a call, whose arguments are then not needed; None to write the call."""
        return None

    def gone(self, value: int) -> bool:  # noqa: ARG002
        """Whether no element of a value remains."""
        return False

    def constant(self, name: str, value: int) -> torch.Tensor:  # noqa: ARG002
        """The tensor of a constant of the program in this graph."""
        return self.program.constants[name]

    # What rewrites and masks use.

    def alive(self, value: int, axis: int) -> Mask | None:
        return self.plan.alive(self.labelled.axes[value][axis])

    def axes(self, value: int) -> tuple[Axis, ...]:
        return self.labelled.axes[value]

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape a value has in this graph."""
        return self.program.values[value].shape

    def call(self, op: Any, args: tuple[Any, ...], keywords: dict[str, Any] | None = None) -> Any:
        return self.graph.call_function(op, args, keywords)

    def call_op(self, op: Any, args: dict[str, Any]) -> fx.Node:
        node: fx.Node = super().call_op(op, args)
        return node

    def device(self) -> fx.Node:
        return self.graph.call_function(getattr, (self._first_input, "device"))

    def size(self, size: int) -> int | fx.Node:
        """A size as an argument: a number, or a node that computes it from the sizes of the input."""
        if isinstance(size, BatchInt):
            key = ("batch", _formula(size.slope), _formula(size.offset))
            return self._computed(key, lambda: self._batch_size(self.size(size.slope), self.size(size.offset)))
        if isinstance(size, ImageInt):
            return self._computed(_formula(size), lambda: self._image_size(size))
        return int(size)

    def _computed(self, key: Any, write: Callable[[], fx.Node]) -> fx.Node:
        """A node that is written once, before all calls."""
        if key not in self._sizes:
            self._sizes[key] = write()
        return self._sizes[key]

    def _early(self, op: Any, *args: Any) -> fx.Node:
        """A node behind all those that compute sizes, so that every size computed from it comes after."""
        with self.graph.inserting_after(self._sizes_end or self._last_placeholder()):
            self._sizes_end = self.graph.call_function(op, args)
        return self._sizes_end

    def _input_size(self, axis: int) -> fx.Node:
        return self._computed(("input", axis), lambda: self._early(aten.sym_size.int, self._first_input, axis))

    def _batch_size(self, slope: int | fx.Node, offset: int | fx.Node) -> fx.Node:
        node = self._input_size(0)
        if slope != 1:
            node = self._early(operator.mul, node, slope)
        return self._early(operator.add, node, offset) if offset != 0 else node

    def _image_size(self, size: ImageInt) -> fx.Node:
        height, width = self._input_size(2), self._input_size(3)
        recorded = tuple(int(part) for part in self._input_shape[2:])
        return self._early(size_of_image, height, width, recorded, int(size), size.growth)

    def _last_placeholder(self) -> fx.Node:
        return self._nodes[self.program.inputs[-1]]

    def sizes(self, value: int) -> list[Any]:
        """The shape of a value as a list of arguments; a single size that depends on the batch is -1."""
        shape = self.shape(value)
        if sum(isinstance(s, BatchInt) for s in shape) == 1 and 0 not in shape:
            return [-1 if isinstance(s, BatchInt) else self.size(s) for s in shape]
        return [self.size(s) for s in shape]

    def node(self, value: int) -> fx.Node:
        if value not in self._nodes:
            found = self.program.values[value]
            if found.origin == "attribute":
                return self.attribute(found.name)
            if found.origin == "constant":
                return self._constant(found.name, value)
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
        first = next((n for n in self.graph.nodes if n.op != "placeholder"), None)
        if first is None:
            return self.graph.get_attr(name)
        with self.graph.inserting_before(first):
            return self.graph.get_attr(name)

    def _constant(self, name: str, value: int) -> fx.Node:
        key = self._free_name(f"{name}_{self.mode}")
        if key not in self._attributes:
            tensor = self.constant(name, value)
            reference = next(self.model.parameters(), None)
            if reference is not None:
                tensor = tensor.to(reference.device)
            self._attributes[key] = self.new_attribute(key, tensor)
        return self._attributes[key]

    def index_tensor(self, positions: Any, name: str) -> fx.Node:
        reference = next(self.model.parameters(), None)
        tensor = torch.as_tensor(positions)
        return self.new_attribute(self._free_name(name), tensor if reference is None else tensor.to(reference.device))

    def _free_name(self, name: str) -> str:
        """A name that no tensor of the model has: a network that was cut before has indices and constants of its own."""
        while name in self._reserved:
            name = f"{name}_"
        return name

    # Calls.

    def _emit(self, call: Call) -> None:
        leaf = self._leaves.get(call.module)
        if call.mutates is not None and self._is_batch_counter_of_a_layer(call):
            return
        node = self.instead(call)
        if node is None:
            args = {name: self._argument(arg) for name, arg in call.args.items() if not self._is_gone(arg)}
            if self.program.training and leaf is None:
                args = self._own_flag(call, args)
            if call.frozen and call.mutates is not None:
                args = {name: self._detached(arg) if name != "self" else arg for name, arg in args.items()}
            node = self.write(call, leaf, args)
        self._bind(call, node)
        if call.frozen and call.mutates is None:
            for value in call.outputs:
                if value in self._nodes:
                    self._nodes[value] = self._detached(self._nodes[value])

    def _detached(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node) and arg.op != "placeholder":
            return self.graph.call_function(aten.detach.default, (arg,))
        return arg

    def _own_flag(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """A layer in eval mode inside a network in train mode uses its own `training` flag, as its code does."""
        name = "training" if call.packet is aten.batch_norm and "running_mean" in args else "train"
        if args.get(name) is not True or not call.module or args.get("running_mean", 0) is None:
            return args
        return {**args, name: self.flag(call.module)}

    def _is_gone(self, arg: Any) -> bool:
        return isinstance(arg, Ref) and self.gone(arg.id)

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return self.node(arg.id)
        if isinstance(arg, (BatchInt, ImageInt)):
            return self.size(arg)
        if isinstance(arg, (list, tuple)):
            return [self._argument(item) for item in arg if not self._is_gone(item)]
        if isinstance(arg, torch.device):
            return self.device()
        return arg

    def _is_batch_counter_of_a_layer(self, call: Call) -> bool:
        """Whether the call increments a batch counter, which the layer itself does when it is called."""
        assert call.mutates is not None
        target = self.program.values[call.mutates]
        if target.origin != "attribute" or not call.module:
            return False
        module = self.model.get_submodule(call.module)
        return type(module).forward in (BatchNorm.forward, InstanceNorm.forward)

    def plain(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> fx.Node:
        if leaf is not None:
            self.objects[call.module] = self.model.get_submodule(call.module)
            return self.graph.call_module(call.module, (args[leaf.data],))
        if call.packet in (aten.view, aten._unsafe_view) and not self.memory_is_written(call):
            # A masked or selected tensor may have other strides, which view() does not accept.
            return self.graph.call_function(aten.reshape.default, (args["self"], args["size"]))
        return self.call_op(call.op, args)

    def _bind(self, call: Call, result: Any) -> None:
        if len(schema_of(call.op).returns) == 1 and not _returns_list(call.op):
            value = call.outputs[0]
            if value is not None:
                self._nodes[value] = result
            return
        for position, value in enumerate(call.outputs):
            if value is not None and not self.gone(value):
                self._nodes[value] = self.graph.call_function(operator.getitem, (result, position))


def is_native(structure: pytree.TreeSpec) -> bool:
    """Whether a graph can return this structure itself: a tensor, or tuples, lists and dicts of tensors."""
    if structure.is_leaf():
        return True
    kind = structure.type
    supported = kind in (tuple, list, dict) or kind is namedtuple or (isinstance(kind, type) and hasattr(kind, "_fields"))
    return supported and all(is_native(child) for child in children_of(structure))


def _formula(size: int) -> Any:
    """What tells sizes apart: two may be the same number and depend on the input in different ways."""
    return (int(size), size.growth) if isinstance(size, ImageInt) else int(size)


def size_of_image(height: int, width: int, recorded: tuple[int, int], value: int, growth: tuple[int, int, int]) -> int:
    """An `ImageInt` for images of this height and width."""
    step = ImageInt.STEP
    taller, wider = height - recorded[0], width - recorded[1]
    more = (growth[0] * taller + growth[1] * wider) * step + growth[2] * taller * wider
    if more % (step * step):
        raise GatorError(
            f"this network in graph form cannot take images of {height} x {width}: it was traced with {recorded[0]} x "
            f"{recorded[1]}, and sizes may differ from that by multiples of its total stride\n"
            "  Pad or resize the images, or trace with keep_class=True to keep the class of the model."
        )
    return value + more // (step * step)


def _returns_list(op: Any) -> bool:
    return "[]" in str(schema_of(op).returns[0].type) or "List" in str(schema_of(op).returns[0].type)
