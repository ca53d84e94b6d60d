"""The dispatch mode that records every ATen call.

The shape of a result is computed by the operator itself, on the meta device. Integer tensors that depend on constants alone
(index tables, positions) are computed, so that code can read them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gator.errors import TraceError
from gator.graph import function_calls
from gator.graph.assumptions import Assumed, Draw, Reason, assumed, depends_on_weights, is_finiteness_test
from gator.graph.call_arguments import map_tensors, mutated_argument, named_arguments, on_meta_device, tensors_in
from gator.graph.call_names import Rewritten
from gator.graph.global_state import inside_autograd_function
from gator.graph.output_shapes import quick_shape
from gator.graph.program import Call, Origin, Ref, Value
from gator.graph.recorded_tensor import RecordedTensor
from gator.graph.tensor_identity import memory_of, storage_of
from gator.graph.user_code import place_in_user_code
from gator.private_torch import (
    OpOverload,
    TorchDispatchMode,
    is_composite,
)

aten = torch.ops.aten


class Names:
    """The names of a model's tensors and modules, looked up once and used for every recording of it."""

    def __init__(self, model: nn.Module) -> None:
        attributes = list(_attributes(model))[::-1]  # of several names the first one is used
        self._by_memory = {memory_of(tensor): name for name, tensor in attributes}
        self.modules = {id(m): n for n, m in reversed(list(model.named_modules(remove_duplicate=False)))}
        self.device = attributes[-1][1].device if attributes else torch.device("cpu")
        self.origins = model.origins if isinstance(model, Rewritten) else {}

    def of_tensor(self, tensor: torch.Tensor) -> str | None:
        return self._by_memory.get(memory_of(tensor))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every call. `has_rule(op)` says whether an operator has a rule; composite ones without a rule are decomposed."""

    def __init__(
        self, names: Names, has_rule: Callable[[OpOverload], bool], *, fold: bool = True, draw: Draw = "highest"
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = names
        self.has_rule = has_rule
        self.fold = fold
        self.draw: Draw = draw  # what random draws are assumed to be where code looks at them
        self.assigned: dict[str, int] = {}  # tensors of the model whose data was replaced -> their value
        self.decisions: dict[Reason, list[str]] = {"draw": [], "finite": []}  # where code looked at assumed data
        self.values: list[Value] = []
        self.calls: list[Call] = []
        self.constants: dict[str, torch.Tensor] = {}
        self._meta_tensors: dict[int, torch.Tensor] = {}
        self._known: dict[str | int, int] = {}  # name of a tensor of the model, or id of another real tensor -> value
        self._alive: list[torch.Tensor] = []  # keeps tensors alive, so that their ids are not reused
        self._made: set[int] = set()  # ids of real tensors computed while recording
        self._updated: dict[int, torch.Tensor] = {}  # counters that forward increments: their current values
        self.device = names.device
        self.functions = function_calls.FunctionLog(names.modules)

    def add_input(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> RecordedTensor:
        meta = torch.empty(shape, dtype=dtype, device="meta")
        return RecordedTensor.make(meta, self._new_value(meta, "input", name), self.device)

    def _new_value(self, meta: torch.Tensor, origin: Origin, name: str) -> int:
        self._alive.append(meta)
        self.values.append(Value(len(self.values), tuple(meta.shape), meta.dtype, origin, name, storage_of(meta)))
        return len(self.values) - 1

    def meta_and_value(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        if isinstance(tensor, RecordedTensor):
            return tensor.meta_tensor, tensor.value
        name = self.names.of_tensor(tensor)
        key: Any = name if name is not None else id(tensor)
        if key not in self._known:
            self._alive.append(tensor)
            meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
            if name is None:
                name = f"_constant_{len(self.constants)}"
                self.constants[name] = tensor.detach()
                self._known[key] = self._new_value(meta, "constant", name)
            else:
                self._known[key] = self._new_value(meta, "attribute", name)
            self._meta_tensors[self._known[key]] = meta
        value = self._known[key]
        return self._meta_tensors[value], value

    def assign(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """`target.data = source`: from here on the target is this value. The tensor of the model itself is not changed."""
        if target.shape != source.shape or (isinstance(target, RecordedTensor) and target.dtype != source.dtype):
            raise TraceError(
                f"data of shape {tuple(source.shape)} is assigned to a tensor of shape {tuple(target.shape)} in forward, which "
                f"cannot be recorded\n  at {place_in_user_code()[0]}\n  Assign it before tracing, or use a new tensor."
            )
        meta, value = self.meta_and_value(source)
        if isinstance(target, RecordedTensor):
            target.meta_tensor, target.value = meta, value
            target.know(None)
            return
        name = self.names.of_tensor(target)
        self._alive.append(target)
        self._known[name if name is not None else id(target)] = value
        self._meta_tensors[value] = meta
        if name is not None:
            self.assigned[name] = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.sym_size.int:
            return int(args[0].shape[args[1]])
        if func.namespace == "prim":  # FakeTensor reads its own device with such a call
            return func(*args, **kwargs)
        tensors = list(tensors_in((*args, *kwargs.values())))
        mutated = mutated_argument(func, args)
        if self._is_constant(func, tensors, mutated):
            result = func(*map_tensors(args, self._current), **map_tensors(kwargs, self._current))
            self._made.update(id(t) for t in tensors_in((result,)))
            self._alive.extend(tensors_in((result,)))
            return result
        if not self.has_rule(func) and _composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        known = self._known_result(func, args, kwargs, tensors)
        if func in _READS_DATA or _indexes_by_mask(func, args):
            reason = _reason(tensors)
            if known is not None and (not reason or isinstance(known, bool)):
                if reason:
                    self.decisions[reason].append(place_in_user_code()[0])
                return known
            if reason == "draw":
                raise TraceError(
                    "the network reads a random draw as a number, which would be the same in every step of the recording\n"
                    f"  at {place_in_user_code()[0]}\n"
                    "  Set its probability to 0 before tracing, or compare tensors: torch.rand(1) < p, without item()."
                )
            raise TraceError(
                f"data-dependent control flow: the network reads the values of a tensor ({func.overloadpacket.__name__})\n"
                f"  at {place_in_user_code()[0]}\n"
                "  Only shapes are known while recording. Use shapes, attributes or constants instead, or trace a part of the "
                "network without this."
            )
        named = named_arguments(func, args, kwargs)
        meta_tensors: dict[int, torch.Tensor] = {}

        def reference(tensor: torch.Tensor) -> Ref:
            meta, value = self.meta_and_value(tensor)
            meta_tensors[id(tensor)] = meta
            return Ref(value)

        recorded = {name: map_tensors(arg, reference) for name, arg in named.items()}
        meta_args = map_tensors(args, lambda t: meta_tensors[id(t)])
        meta_kwargs = map_tensors(kwargs, lambda t: meta_tensors[id(t)])
        meta_kwargs = {k: on_meta_device(v) for k, v in meta_kwargs.items()}
        if mutated is None:
            result = quick_shape(func, meta_args) if not meta_kwargs else None
            if result is None:
                result = func(*[on_meta_device(a) for a in meta_args], **meta_kwargs)
        else:
            if func.overloadpacket in _RESHAPES_IN_PLACE:
                raise TraceError(
                    f"{func.overloadpacket.__name__} changes the shape of a tensor in place, which cannot be recorded\n"
                    f"  at {place_in_user_code()[0]}\n  Use the form without the trailing underscore."
                )
            result = meta_args[0]
        if result is None:
            return None  # an assertion: it computes nothing
        source, module, origin = place_in_user_code(self.names.modules, self.names.origins)
        single = isinstance(result, torch.Tensor)
        results = [result] if single else list(result)
        name = func.overloadpacket.__name__
        ids = [self._new_value(r, "call", name) if isinstance(r, torch.Tensor) else None for r in results]
        overwrites = None
        if mutated is not None:
            overwrites = self.meta_and_value(mutated)[1]
        frozen = not torch.is_grad_enabled() and not inside_autograd_function()
        self.functions.ran(len(self.calls), name)
        self.calls.append(Call(len(self.calls), func, recorded, tuple(ids), module, source, overwrites, frozen, origin))
        if mutated is not None:
            if not isinstance(mutated, RecordedTensor):
                self._update(func, args, kwargs, mutated, tensors)
            # Later reads of this tensor refer to the new value; older views keep their value.
            if isinstance(mutated, RecordedTensor):
                mutated.value = ids[0] if ids[0] is not None else mutated.value
                mutated.know(self._data_of_result(func, named, tensors, result, known))
            return mutated
        if single:
            single_result = RecordedTensor.make(result, ids[0], self.device)  # type: ignore[arg-type]
            single_result.know(self._data_of_result(func, named, tensors, result, known))
            return single_result
        tensors = [RecordedTensor.make(r, v, self.device) if v is not None else r for r, v in zip(results, ids, strict=True)]
        return tensors if isinstance(result, list) else tuple(tensors)

    def _data_of_result(
        self, func: Any, named: dict[str, Any], tensors: list[torch.Tensor], result: torch.Tensor, known: Any
    ) -> Assumed | None:
        """The data of a result, if it is known or assumed."""
        if isinstance(known, torch.Tensor):
            return Assumed(known, _reason(tensors))
        if is_finiteness_test(func):
            _, value = self.meta_and_value(tensors[0])
            if not depends_on_weights(value, self.calls, self.values):
                return None
        return assumed(func, named, result, self.draw)

    def _current(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._updated.get(id(tensor), tensor)

    def _update(self, func: Any, args: Any, kwargs: Any, mutated: torch.Tensor, tensors: list[torch.Tensor]) -> None:
        """Update a counter for code that reads it after incrementing it (batch norm with a cumulative average does)."""
        if not mutated.dtype.is_floating_point and not any(isinstance(t, RecordedTensor) for t in tensors):
            self._updated[id(mutated)] = self._current(mutated).clone()
            func(*map_tensors(args, self._current), **map_tensors(kwargs, self._current))

    def _known_result(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """The result of a call whose arguments all have known data: code may read it (to see if a mask is causal, say)."""
        if torch.Tag.nondeterministic_seeded in func.tags or func.overloadpacket in (
            aten.empty,
            aten.new_empty,
            aten.empty_like,
        ):
            return None
        if tensors and mutated_argument(func, args) is tensors[0] and not isinstance(tensors[0], RecordedTensor):
            return None
        for tensor in tensors:
            if tensor.known_data is None if isinstance(tensor, RecordedTensor) else self.names.of_tensor(tensor) is not None:
                return None
        if any(tensor.numel() > _MAX_KNOWN_ELEMENTS and not _is_uniform(tensor) for tensor in tensors):
            return None
        mutated = mutated_argument(func, args)

        def real(tensor: torch.Tensor) -> Any:
            data = tensor.known_data if isinstance(tensor, RecordedTensor) else tensor
            return data.clone() if tensor is mutated and data is not None else data  # others may share it

        result = func(*map_tensors(args, real), **map_tensors(kwargs, real))
        return result if not isinstance(result, torch.Tensor) or result.numel() <= _MAX_KNOWN_ELEMENTS else None

    def _is_constant(self, func: Any, tensors: list[torch.Tensor], mutated: torch.Tensor | None) -> bool:
        """Whether the call can be computed: it depends on no input and on no floating-point attribute."""
        if torch.Tag.nondeterministic_seeded in func.tags or any(isinstance(t, RecordedTensor) for t in tensors):
            return False
        if mutated is not None and id(mutated) not in self._made:
            return False  # a tensor of the model, which must not be changed
        if not tensors:
            return self.fold and not _makes_floats(func)
        if any(self.names.of_tensor(t) is not None and t.dtype.is_floating_point for t in tensors):
            return False
        if self.fold:
            return True
        # A buffer that is repeated for every example follows the batch size.
        return func.overloadpacket not in _REPEATS and not any(self.names.of_tensor(t) is None for t in tensors)


class Assignments(TorchFunctionMode):
    """Catches `tensor.data = value`, which is no operator: torch would put the tensor without data into the model."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_DATA:
            self._recorder.assign(*args)
            return None
        return func(*args, **(kwargs or {}))


_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_RESHAPES_IN_PLACE = {aten.transpose_, aten.t_, aten.squeeze_, aten.unsqueeze_, aten.swapdims_, aten.swapaxes_, aten.resize_}
_REPEATS = {aten.expand, aten.repeat}
_MAX_KNOWN_ELEMENTS = 1 << 20
_READS_DATA = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.nonzero.default}
_FLOAT_FACTORIES = {
    aten.zeros, aten.ones, aten.full, aten.empty, aten.rand, aten.randn, aten.linspace, aten.eye,
    aten.scalar_tensor,
}  # fmt: skip


def _indexes_by_mask(func: Any, args: Any) -> bool:
    """Whether the call is `x[mask]`, whose shape depends on the data of the mask."""
    if func.overloadpacket is not aten.index:
        return False
    return any(isinstance(index, RecordedTensor) and index.dtype == torch.bool for index in args[1])


def _is_uniform(tensor: torch.Tensor) -> bool:
    """Whether the known data of a tensor is a single value, so that its size does not matter."""
    return isinstance(tensor, RecordedTensor) and tensor.known_data is not None and not any(tensor.known_data.stride())


def _reason(tensors: list[torch.Tensor]) -> Reason:
    """Why the data of these tensors is assumed; a draw comes first, as its decisions are recorded twice."""
    reasons = {tensor.reason for tensor in tensors if isinstance(tensor, RecordedTensor)}
    return "draw" if "draw" in reasons else "finite" if "finite" in reasons else ""


def _makes_floats(func: Any) -> bool:
    return func.overloadpacket in _FLOAT_FACTORIES


def _attributes(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


_composite = functools.cache(is_composite)
