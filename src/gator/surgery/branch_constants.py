"""Compute the constants that removed branches leave behind.

A block whose inner channels are all removed still adds c = beta - gamma * mean / sqrt(var + eps): one value per channel. It
becomes a parameter of the cut network, which can be trained further. The train and eval graphs share it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gator.errors import CutError
from gator.graph.call_names import module_of, operator_of
from gator.graph.labels import Axis
from gator.graph.program import BatchInt, Call, Mode, Ref, map_refs
from gator.graph.tensor_identity import without_data
from gator.surgery.cut_plan import PREFIX, Constant, Omitted, RemovedBranches, Term
from gator.surgery.rewrite import rewritten
from gator.surgery.slice import narrowed, without_denormals_
from gator.surgery.writer import Writer

if TYPE_CHECKING:
    from gator.surgery.emit import Emitter

aten = torch.ops.aten
SUMS = (aten.add, aten.add_, aten.sub, aten.sub_)
CATS = (aten.cat, aten.concat, aten.concatenate)


class ConstantFolder:
    """Evaluates constant values on the sliced model and creates one parameter for each distinct result.

    With `given`, the removed branches of a plan, exactly those constants are created, under the names they have there. New
    parameters do not get one of the names in `reserved`.
    """

    def __init__(self, given: RemovedBranches | None = None, reserved: Iterable[str] = ()) -> None:
        self._values: dict[tuple[Mode, int], torch.Tensor] = {}
        self._parameters: dict[str, torch.Tensor] = {}
        self._reserved = frozenset(reserved)
        self._given = given
        self._constants = {(c.mode, c.made_by): c for c in given.constants} if given else {}
        self.made: dict[tuple[Mode, str], Constant] = {}
        self.omitted: dict[Omitted, None] = {}

    def constant(self, emitter: Emitter, value: int) -> tuple[str, torch.Tensor, bool]:
        """(name, tensor, whether it must be expanded where it is used)."""
        full = self._value(emitter, value)
        if self._given is None:
            if without_data(full):
                raise CutError(
                    f"{_maker(emitter, value).where()} leaves a constant behind, which cannot be computed on the meta device\n"
                    "  Keep a channel of every edge, or cut a network that has its weights."
                )
            same_along = _same_along(full, emitter.axes(value))
            small = _first(full, same_along)
            made_by = _name_of(emitter, value)
            found = Constant(emitter.mode, made_by, self._name(emitter.mode, made_by, small), same_along)
        else:
            listed = self._listed(emitter, value)
            if listed is None:
                raise CutError(f"the plan has no constant for the result of {_maker(emitter, value).where()}")
            found = listed
            small = _first(full, found.same_along)
        if found.name not in self._parameters:
            self._parameters[found.name] = nn.Parameter(small) if small.dtype.is_floating_point else small
        self.made[found.mode, found.made_by] = found
        return found.name, self._parameters[found.name], not _only_broadcast(emitter, value)

    def omits(self, emitter: Emitter, call: Call, argument: Term) -> bool:
        """Whether this term of a sum can be omitted, because it is zero for any weights."""
        term = Omitted(emitter.mode, emitter.call_names[call.index], argument)
        value = call.value_at(argument)
        omitted = is_zero(emitter, value) if self._given is None else self._is_given(term)
        if not omitted or value not in emitter.liveness.folded:
            return False
        self.omitted.setdefault(term)
        return True

    def _is_given(self, term: Omitted) -> bool:
        return self._given is not None and term in self._given.omitted

    def _listed(self, emitter: Emitter, value: int) -> Constant | None:
        """The constant of the plan that belongs to a value.

        After several cuts a constant has the name of the last call that still existed at its cut. Earlier cuts may have removed
        a sum without its other term, a concatenation of a single part, or a sum with a constant that was added to a bias.
        """
        found = self._constants.get((emitter.mode, _name_of(emitter, value)))
        if found is not None:
            return found
        call = _maker(emitter, value)
        refs = {name: v for (name, _), v in call.tensors() if v not in emitter.liveness.empty}
        if call.packet in CATS and len(list(call.tensors())) > len(refs) == 1:
            return self._listed(emitter, *refs.values())
        if call.packet in SUMS and len(refs) == 2 and emitter.liveness.folded.issuperset(refs.values()):
            pairs: tuple[tuple[Term, Term], ...] = (("self", "other"), ("other", "self"))
            for rest, term in pairs:
                beside = self._listed(emitter, refs[term])
                omitted = self._is_given(Omitted(emitter.mode, emitter.call_names[call.index], term))
                if omitted or (beside is not None and beside.absorbed):
                    return self._listed(emitter, refs[rest])
        return None

    def _name(self, mode: Mode, made_by: str, small: torch.Tensor) -> str:
        """Train and eval graphs share a constant that is the same in both; otherwise each has its own name."""
        names_of_mode = {constant.name for constant in self.made.values() if constant.mode == mode}
        for name, tensor in self._parameters.items():
            if name not in names_of_mode and tensor.shape == small.shape and torch.equal(tensor, small):
                return name
        base = PREFIX + (module_of(made_by).replace(".", "_") or operator_of(made_by))
        names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
        return next(name for name in names if name not in self._parameters and name not in self._reserved)

    def _value(self, emitter: Emitter, value: int) -> torch.Tensor:
        key = (emitter.mode, value)
        if key not in self._values:
            found = emitter.program.values[value]
            if found.origin == "call":
                self._evaluate(emitter, _maker(emitter, value))
            elif found.origin == "attribute":
                owner, _, attribute = found.name.rpartition(".")
                self._values[key] = getattr(emitter.model.get_submodule(owner), attribute).detach()
            else:
                axes = [emitter.alive(value, axis) for axis in range(len(found.shape))]
                self._values[key] = narrowed(emitter.program.constants[found.name], axes)
        return self._values[key]

    def _evaluate(self, emitter: Emitter, call: Call) -> None:
        with torch.no_grad():
            if call.index in emitter.liveness.emptied_sum:
                results: Any = self._bias(emitter, call)
            else:
                results = self._run(emitter, call)
        if isinstance(results, torch.Tensor):
            results = [results]
        for value, result in zip(call.outputs, results, strict=True):
            if value is not None:
                self._values[emitter.mode, value] = result

    def _run(self, emitter: Emitter, call: Call) -> Any:
        empty = emitter.liveness.empty
        present = {
            name: [x for x in arg if not (isinstance(x, Ref) and x.id in empty)] if isinstance(arg, list) else arg
            for name, arg in call.args.items()
            if not (isinstance(arg, Ref) and arg.id in empty)
        }
        args = {name: _as_numbers(map_refs(arg, lambda ref: self._value(emitter, ref.id))) for name, arg in present.items()}
        for name in ("train", "training", "use_input_stats"):
            if name in args:
                args[name] = False  # for constants there are no batch statistics, and dropout does nothing
        if call.mutates is not None:
            args["self"] = args["self"].clone()
        return rewritten(_Evaluator(emitter), call, args)

    def _bias(self, emitter: Emitter, call: Call) -> torch.Tensor:
        """The result of a sum over an empty axis: zeros, plus the bias."""
        output = call.outputs[0]
        assert output is not None
        shape = [int(size) for size in emitter.shape(output)]
        bias = call.args.get("bias", call.args.get("self") if call.packet in (aten.addmm, aten.baddbmm) else None)
        if not isinstance(bias, Ref):
            weight = next((v for _, v in call.tensors() if emitter.program.values[v].origin == "attribute"), None)
            like = self._value(emitter, weight) if weight is not None else next(emitter.model.parameters())
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        tensor = self._value(emitter, bias.id)
        if call.packet not in (aten.linear, aten.bilinear, aten.addmm, aten.baddbmm):
            rank = len(emitter.program.values[call.value_at("weight")].shape) - 2
            tensor = tensor.reshape(-1, *[1] * rank)
        return tensor.expand(shape).clone()


class _Evaluator(Writer):
    """Runs rewritten calls on tensors, at the recorded batch size."""

    def __init__(self, emitter: Emitter) -> None:
        self.cutting = emitter.cutting
        self._device = next(emitter.model.parameters()).device

    def call(self, op: Any, args: tuple[Any, ...], keywords: dict[str, Any] | None = None) -> Any:
        return op(*args, **(keywords or {}))

    def size(self, size: int) -> int:
        return int(size)

    def sizes(self, value: int) -> list[int]:
        return [int(size) for size in self.cutting.after(value)]

    def index_tensor(self, positions: Any, name: str) -> torch.Tensor:  # noqa: ARG002
        return torch.as_tensor(positions, device=self._device)

    def device(self) -> torch.device:
        return self._device


def _as_numbers(arg: Any) -> Any:
    """Replace sizes that depend on the batch by their values at the recorded batch size."""
    if isinstance(arg, (list, tuple)):
        return type(arg)(_as_numbers(item) for item in arg)
    return int(arg) if isinstance(arg, BatchInt) else arg


# Operators that return zeros for zeros.
_KEEP_ZERO = (
    aten.relu, aten.relu_, aten.gelu, aten.silu, aten.silu_, aten.tanh, aten.dropout, aten.view, aten.reshape, aten.permute,
    aten.transpose, aten.contiguous, aten.flatten, aten.clone, aten.slice, aten.mean, aten.sum, aten.neg, aten.hardswish,
)  # fmt: skip


def is_zero(emitter: Emitter, value: int) -> bool:
    """Whether a value is zero for any weights: a sum over an empty axis without a bias, or computed from it by `_KEEP_ZERO`."""
    if value not in emitter.liveness.folded or emitter.program.values[value].origin != "call":
        return False
    call = _maker(emitter, value)
    if call.index in emitter.liveness.emptied_sum:
        return not isinstance(call.args.get("bias"), Ref) and call.packet not in (aten.addmm, aten.baddbmm)
    refs = [v for _, v in call.tensors() if v not in emitter.liveness.empty]
    if call.packet in (aten.mul, aten.mul_):
        return any(is_zero(emitter, v) for v in refs)
    if call.packet in (*SUMS, *CATS):
        numbers = call.packet in SUMS and not isinstance(call.args["other"], Ref)
        return not numbers and all(is_zero(emitter, v) for v in refs)
    return call.packet in _KEEP_ZERO and is_zero(emitter, refs[0])


def _maker(emitter: Emitter, value: int) -> Call:
    return emitter.maker[value]


def _name_of(emitter: Emitter, value: int) -> str:
    """The name of the call that computes a value, followed by the number of the result if there are several."""
    call = _maker(emitter, value)
    position = call.outputs.index(value)
    return emitter.call_names[call.index] + (f"/{position}" if position else "")


def _same_along(tensor: torch.Tensor, axes: Sequence[Axis]) -> tuple[int, ...]:
    """The batch and spatial axes along which the tensor is constant."""
    found = []
    for axis, labels in enumerate(axes):
        if labels is None and torch.equal(tensor.narrow(axis, 0, 1).expand_as(tensor), tensor):
            found.append(axis)
    return tuple(found)


def _first(tensor: torch.Tensor, same_along: Sequence[int]) -> torch.Tensor:
    """The tensor with one position along the axes on which it is constant."""
    if any(axis >= tensor.ndim for axis in same_along):
        raise CutError(f"the plan has a constant without axis {max(same_along)} where the network has {tensor.ndim} axes")
    for axis in same_along:
        tensor = tensor.narrow(axis, 0, 1)
    return without_denormals_(tensor.clone())


def _only_broadcast(emitter: Emitter, value: int) -> bool:
    """Whether every call that uses the value is element-wise and has another argument of the full shape."""
    for call in emitter.program.calls:
        values = [v for _, v in call.tensors()]
        if call.index not in emitter.liveness.live or value not in values:
            continue
        if torch.Tag.pointwise not in call.op.tags:
            return False
        assert call.outputs[0] is not None
        full = emitter.shape(call.outputs[0])
        if not any(v not in emitter.liveness.folded and emitter.shape(v) == full for v in values):
            return False
    return all(not (isinstance(leaf, Ref) and leaf.id == value) for leaf in emitter.program.outputs[0])
