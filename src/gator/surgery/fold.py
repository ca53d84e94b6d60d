"""Constants that a closed branch leaves behind, computed once at the cut.

A block without inside still adds c = beta - gamma * mean / sqrt(var + eps): that number a channel stays, as a parameter
that goes on learning. Train and eval graphs share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gator.errors import CutError
from gator.graph.labels import Axis
from gator.graph.program import Call, Mode, Ref, map_refs
from gator.surgery.rewrite import static_arguments
from gator.surgery.slice import narrowed, without_denormals_

if TYPE_CHECKING:
    from gator.surgery.emit import Emitter

aten = torch.ops.aten
Folded = tuple[str, tuple[int, ...]]  # name and shape of the parameter that a constant became


class Folder:
    """Evaluates folded values on the sliced model and hands out one parameter for each distinct result."""

    def __init__(self, made: Mapping[str, Folded] | None = None) -> None:
        self._values: dict[tuple[Mode, int], torch.Tensor] = {}
        self._made: dict[str, torch.Tensor] = {}
        self._given = made
        self.made: dict[str, Folded] = {}  # "mode:value" -> what it became: a file says which was which

    def constant(self, emitter: Emitter, value: int) -> tuple[str, torch.Tensor, bool]:
        """(name, tensor, whether it must be expanded where it is used)."""
        full = self._value(emitter, value)
        key = f"{emitter.mode}:{value}"
        if self._given is None:
            small = _compressed(full, emitter.axes(value))
            name = self._name(emitter, value, small)
        else:
            if key not in self._given:
                raise CutError(f"the plan says nothing of the constant that {_maker(emitter, value).where()} leaves behind")
            name, shape = self._given[key]
            small = _shrunk(full, shape)
        if name not in self._made:
            self._made[name] = nn.Parameter(small) if small.dtype.is_floating_point else small
        self.made[key] = (name, tuple(small.shape))
        return name, self._made[name], not _only_broadcast(emitter, value)

    def _name(self, emitter: Emitter, value: int, small: torch.Tensor) -> str:
        """Train and eval graphs share a constant that is the same in both; otherwise each gets a name of its own."""
        call = _maker(emitter, value)
        base = "folded_" + (call.module.replace(".", "_") or call.packet.__name__)
        others = {key.partition(":")[0] for key in self.made} - {emitter.mode}
        mine = {name for key, (name, _) in self.made.items() if key.startswith(f"{emitter.mode}:")}
        for name, tensor in self._made.items():
            if others and name not in mine and tensor.shape == small.shape and torch.equal(tensor, small):
                return name
        count = sum(name.startswith(base) for name in self._made)
        return base if not count else f"{base}_{count + 1}"

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
            if call.index in emitter.fate.emptied_sum:
                results: Any = self._bias(emitter, call)
            else:
                results = self._run(emitter, call)
        if isinstance(results, torch.Tensor):
            results = [results]
        for value, result in zip(call.outputs, results, strict=True):
            if value is not None:
                self._values[emitter.mode, value] = result

    def _run(self, emitter: Emitter, call: Call) -> Any:
        empty = emitter.fate.empty
        args: dict[str, Any] = {
            name: [x for x in arg if not (isinstance(x, Ref) and x.id in empty)] if isinstance(arg, list) else arg
            for name, arg in static_arguments(emitter, call).items()
        }
        args = {name: map_refs(arg, lambda ref: self._value(emitter, ref.id)) for name, arg in args.items()}
        for name in ("train", "training", "use_input_stats"):
            if name in args:
                args[name] = False  # constants have no batch to take statistics from, and nothing to drop
        if call.mutates is not None:
            args["self"] = args["self"].clone()
        return call.op(**args)

    def _bias(self, emitter: Emitter, call: Call) -> torch.Tensor:
        """What a sum over nothing gives: zeros, plus the bias."""
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


# Zero in, zero out.
_KEEP_ZERO = (
    aten.relu, aten.relu_, aten.gelu, aten.silu, aten.silu_, aten.tanh, aten.dropout, aten.view, aten.reshape, aten.permute,
    aten.transpose, aten.contiguous, aten.flatten, aten.clone, aten.slice, aten.mean, aten.sum, aten.neg, aten.hardswish,
)  # fmt: skip


def is_zero(emitter: Emitter, value: int) -> bool:
    """Whether a folded value is zero whatever the weights are: a sum over nothing without a bias, and what keeps it zero."""
    if value not in emitter.fate.folded or emitter.program.values[value].origin != "call":
        return False
    call = _maker(emitter, value)
    if call.index in emitter.fate.emptied_sum:
        return not isinstance(call.args.get("bias"), Ref) and call.packet not in (aten.addmm, aten.baddbmm)
    refs = [v for _, v in call.tensors()]
    if call.packet in (aten.mul, aten.mul_):
        return any(is_zero(emitter, v) for v in refs)
    return call.packet in _KEEP_ZERO and is_zero(emitter, refs[0])


def _maker(emitter: Emitter, value: int) -> Call:
    return next(call for call in emitter.program.calls if value in call.outputs)


def _compressed(tensor: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
    """One position of batch and space where nothing varies along them; channels stay one number each."""
    shape = []
    for axis, labels in enumerate(axes):
        first = tensor.narrow(axis, 0, 1)
        same = labels is None and torch.equal(first.expand_as(tensor), tensor)
        shape.append(1 if same else tensor.shape[axis])
    return _shrunk(tensor, shape)


def _shrunk(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    for axis, size in enumerate(shape):
        tensor = tensor.narrow(axis, 0, min(size, tensor.shape[axis]))
    return without_denormals_(tensor.clone())


def _only_broadcast(emitter: Emitter, value: int) -> bool:
    """Whether every living reader is element-wise and has another argument of the full shape."""
    for call in emitter.program.calls:
        values = [v for _, v in call.tensors()]
        if call.index not in emitter.fate.live or value not in values:
            continue
        if torch.Tag.pointwise not in call.op.tags:
            return False
        assert call.outputs[0] is not None
        full = emitter.shape(call.outputs[0])
        if not any(v not in emitter.fate.folded and emitter.shape(v) == full for v in values):
            return False
    return all(not (isinstance(leaf, Ref) and leaf.id == value) for leaf in emitter.program.outputs[0])
