"""`CutNetwork`: the fx.GraphModule that a cut returns if the user's class does not work with the smaller layers.

`Signature` maps the arguments of the original forward to the flat inputs of a graph.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from gator.errors import GatorError
from gator.graph.call_names import Rewritten
from gator.graph.inputs import Inputs, TensorSpec
from gator.private_torch import forward_from_source, pytree


class Signature:
    """Maps the arguments of the original forward to the flat tensors that a graph takes, and flat results to its return value.

    `returned` is the structure of the result in train and in eval mode, None where the graph returns it itself. A signature is
    immutable, so copies share it. `free` allows inputs of other sizes than the traced one; `bound` says why it is not.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        inputs: Inputs,
        returned: tuple[pytree.TreeSpec | None, pytree.TreeSpec | None],
        *,
        free: bool,
        bound: str = "",
    ) -> None:
        self.returned = returned
        self._bound_by = bound
        self._parameters = inspect.signature(forward)
        count = len(inputs.leaves)
        args, kwargs = pytree.tree_unflatten(list(range(count)), inputs.structure)
        found, self._structure = pytree.tree_flatten_with_path(self._bound(args, kwargs))
        self._paths, order = [path for path, _ in found], [leaf for _, leaf in found]
        self._tensors = [i for i, leaf in enumerate(inputs.leaves) if isinstance(leaf, TensorSpec)]
        self._places = [order.index(i) for i in self._tensors]
        self._others = [(order.index(i), leaf) for i, leaf in enumerate(inputs.leaves) if not isinstance(leaf, TensorSpec)]
        self._shapes = [_expected(leaf, inputs, free) for leaf in inputs.leaves if isinstance(leaf, TensorSpec)]
        self.simple = not kwargs and len(args) == len(self._tensors) and all(isinstance(a, int) for a in args)

    def of_method(self) -> inspect.Signature:
        """The parameters of the original forward after `self`: exporters name inputs and dynamic shapes by them."""
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        rest = [p.replace(annotation=inspect.Parameter.empty) for p in self._parameters.parameters.values()]
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        first = first if not rest or rest[0].kind is kinds[0] else first.replace(kind=kinds[1])
        return inspect.Signature([first, *rest])

    def __deepcopy__(self, memo: dict[int, Any]) -> Signature:
        return self

    def unflatten(self, result: Any, training: bool) -> Any:
        structure = self.returned[0 if training else 1]
        return result if structure is None else pytree.tree_unflatten(list(result), structure)

    def _bound(self, args: Any, kwargs: Any) -> dict[str, Any]:
        return _ordered(dict(self._parameters.bind(*args, **kwargs).arguments))

    def tensor_at(self, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
        """The flat tensor at this position, also for a call with other arguments; None if there is none at its place."""
        if self.simple and position < len(args) and isinstance(args[position], torch.Tensor):
            first: torch.Tensor = args[position]
            return first
        try:
            found: Any = self._bound(args, kwargs)
            for key in self._paths[self._places[position]]:
                found = key.get(found)
        except (TypeError, KeyError, IndexError, AttributeError):
            return None
        return found if isinstance(found, torch.Tensor) else None

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if self.simple and not kwargs and len(args) == len(self._tensors):
            return self._checked(args)
        leaves, structure = pytree.tree_flatten(self._bound(args, kwargs))
        if structure != self._structure:
            raise _different_arguments(f"traced: {self._structure}\n  called: {structure}")
        for place, value in self._others:
            if isinstance(leaves[place], torch.Tensor) or leaves[place] != value:
                raise _different_arguments(f"traced with the argument {value!r}, called with {_brief(leaves[place])}")
        return self._checked(tuple(leaves[i] for i in self._places))

    def _checked(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        for tensor, shape in zip(tensors, self._shapes, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise _different_arguments(f"traced with a tensor, called with {tensor!r}")
            if len(tensor.shape) != len(shape) or any(
                e is not None and e != s for e, s in zip(shape, tensor.shape, strict=True)
            ):
                sizes = ", ".join("any" if size is None else str(size) for size in shape)
                why = f"\n  The network in graph form is bound to this size: {self._bound_by}" if self._bound_by else ""
                raise _different_arguments(f"traced with an input of shape ({sizes}), called with {_brief(tensor)}{why}")
        return tensors


def _expected(spec: TensorSpec, inputs: Inputs, free: bool) -> list[int | None]:
    """The sizes that an input may have, None for any: the batch size, and all other sizes if the network allows it."""
    shape: list[int | None] = list(spec.shape)
    if inputs.batched(spec):
        shape[0] = None
    if free:
        shape = [shape[0], *[None] * (len(shape) - 1)] if shape else shape
    return shape


def _brief(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _different_arguments(what: str) -> GatorError:
    return GatorError(
        f"this network was traced with other arguments than it is called with\n  {what}\n"
        "  Trace it with example_inputs like those you call it with."
    )


def _ordered(arguments: dict[Any, Any]) -> dict[Any, Any]:
    """Dictionaries with sorted keys, so that the order of keyword arguments does not matter."""
    ordered = {key: arguments[key] for key in sorted(arguments, key=str)}
    return {key: _ordered(value) if type(value) is dict else value for key, value in ordered.items()}


def compiled(graph: fx.Graph) -> tuple[Callable[..., Any], str]:
    """The graph as a plain function of (module, *inputs), and its source."""
    code = graph.python_code("self")
    function: Callable[..., Any] = forward_from_source(code.src, code.globals, None)
    return function, code.src


def _origins(source: str, graph: fx.Graph) -> dict[int, str]:
    """By line number of the generated code, the name of the call that the line was made from."""
    named = {node.name: node.meta["origin"] for node in graph.nodes if "origin" in node.meta}
    assigned = [(number, _ASSIGNED.match(line)) for number, line in enumerate(source.split("\n"), start=1)]
    return {number: named[found[1]] for number, found in assigned if found and found[1] in named}


_ASSIGNED = re.compile(r"\s*(\w+)\s*(?::[^=]+)?=[^=]")


class CutNetwork(Rewritten, fx.GraphModule):
    """Runs one graph in eval mode and, if that differs, another one in train mode, over the same layers."""

    def __init__(
        self,
        objects: Mapping[str, Any] | nn.Module,
        graph: fx.Graph,
        train_graph: fx.Graph | None,
        signature: Signature,
        persistent: frozenset[str],
        class_name: str = "CutNetwork",
    ) -> None:
        super().__init__(objects, graph, class_name)  # type: ignore[arg-type]
        if train_graph is not None:
            for node in train_graph.nodes:
                if node.op in ("get_attr", "call_module") and not _has(self, node.target, node.op == "call_module"):
                    place_(self, node.target, _fetch(objects, node.target))
        self.train_graph = train_graph
        self._signature = signature
        self._persistent = persistent
        self.carried: dict[str, Any] = {}  # attributes of the original model (carry_over.py)
        self.original_class: type[nn.Module] | None = None
        for name, _ in self.named_buffers():
            if name not in persistent:
                owner, _, attribute = name.rpartition(".")
                self.get_submodule(owner)._non_persistent_buffers_set.add(attribute)
        self.recompile()

    def recompile(self) -> Any:
        code = super().recompile()
        kind = type(self)
        evaluates = kind.forward
        kind.origins = {evaluates.__code__: _origins(code.src, self.graph)}
        graph = self.__dict__.get("train_graph")
        trains = evaluates
        if graph is not None:
            trains, source = compiled(graph)
            kind.origins[trains.__code__] = _origins(source, graph)

        def forward(self: CutNetwork, *args: Any, **kwargs: Any) -> Any:
            flat = self._signature.flatten(args, kwargs)
            run = trains if self.training else evaluates
            return self._signature.unflatten(run(self, *flat), self.training)

        if "_signature" in self.__dict__:
            forward.__signature__ = self._signature.of_method()  # type: ignore[attr-defined]
        kind.forward = forward
        return code

    def _deepcopy_init(self) -> Callable[..., None]:
        def init(new: CutNetwork, holder: nn.Module, graph: fx.Graph) -> None:
            state = holder.__dict__
            CutNetwork.__init__(
                new, holder, graph, state["train_graph"], self._signature, self._persistent, type(self).__name__
            )

        return init

    def __getattr__(self, name: str) -> Any:
        """Methods and properties of the original class work where they do not need what the graph replaced."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = self.__dict__.get("original_class")
            if original is None or name.startswith("__") or not hasattr(original, name):
                raise
            found = inspect.getattr_static(original, name)
            return found.__get__(self, type(self)) if hasattr(type(found), "__get__") else found

    def __deepcopy__(self, memo: dict[int, Any]) -> CutNetwork:
        new: Any = super().__deepcopy__(memo)
        new.original_class, new.carried = self.original_class, copy.deepcopy(self.carried, memo)
        new.__dict__.update(new.carried)
        known = dict(new.named_modules())
        for name, module in self.named_modules():
            if name not in known and name.rpartition(".")[0] in known:
                place_(new, name, copy.deepcopy(module, memo))
                known = dict(new.named_modules())
        for name, module in self.named_modules():
            new.get_submodule(name).training = module.training
        if "gator_plan" in self.__dict__:
            new.gator_plan = self.gator_plan
        copied: CutNetwork = new
        return copied


def _has(module: nn.Module, target: str, callable_: bool) -> bool:
    """Whether a target exists already; a plain nn.Module that only holds tensors does not count as a layer."""
    try:
        found = _fetch(module, target)
    except (AttributeError, KeyError):
        return False
    return not callable_ or type(found) is not nn.Module


def _fetch(objects: Mapping[str, Any] | nn.Module, target: str) -> Any:
    if isinstance(objects, Mapping):
        return objects[target]
    owner, _, name = target.rpartition(".")
    return getattr(objects.get_submodule(owner), name)


def place_(module: nn.Module, target: str, value: Any) -> None:
    """Put a module or a tensor at a dotted name."""
    *path, name = target.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = getattr(module, part)
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def build_network(
    objects: Mapping[str, Any],
    eval_graph: fx.Graph,
    train_graph: fx.Graph,
    signature: Signature,
    persistent: frozenset[str],
    class_name: str,
) -> CutNetwork:
    """A network from both graphs; a single graph is used for both modes if they have the same code."""
    one, other = (graph.python_code("self").src for graph in (eval_graph, train_graph))
    return CutNetwork(dict(objects), eval_graph, None if one == other else train_graph, signature, persistent, class_name)
