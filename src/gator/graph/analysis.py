"""Run the rules over the programs of a network and collect the labels, ties and reads that they return.

Train and eval programs share the labels of parameters and buffers, so a tie found in either mode holds in both. Some rules
have a choice (whole heads or head dimensions, whole groups or positions inside groups). If a choice turns out to leave nothing
to prune, the analysis runs again with the other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from gator.errors import GatorError
from gator.graph.labels import Axes, Axis, Labels, LabelSpace
from gator.graph.output_hint import pinned_parameters
from gator.graph.program import MODES, Argument, Call, Program, Ref
from gator.graph.rules import Scope, find
from gator.graph.rules.table import ReadKind
from gator.graph.select_layers import under
from gator.graph.tensor_identity import without_data

_MAX_PASSES = 8
_MIN_DISTANCE = 30  # calls; about the length of one attention layer
aten = torch.ops.aten
Heads = Literal["whole", "dims"]  # attention loses whole heads, or dimensions inside all heads
HEADS: tuple[Heads, Heads] = ("whole", "dims")
PRODUCTS = (aten.matmul, aten.mm, aten.bmm, aten.mv, aten.dot, aten.addmm, aten.baddbmm, aten.einsum)


@dataclass(frozen=True)
class Read:
    """A call that mixes positions along `axis` of one argument; `kind` says how removed channels are kept out of the result."""

    argument: Argument
    axis: int
    kind: ReadKind


@dataclass(frozen=True)
class Port:
    """Where a layer reads or writes an edge: axis `axis` of parameter `parameter` of layer `layer`."""

    layer: str
    parameter: str
    axis: int


@dataclass
class ProgramLabels:
    """What the rules found out about one program."""

    program: Program
    axes: dict[int, Axes] = field(default_factory=dict)
    reads: dict[int, list[Read]] = field(default_factory=dict)  # by call index
    moves: dict[int, dict[int, tuple[int, Labels]]] = field(default_factory=dict)  # call -> out axis -> (axis, coordinates)
    choices: dict[int, Any] = field(default_factory=dict)


@dataclass
class _Choice:
    options: dict[Any, int]
    chosen: Any
    labels: Axis = None


class Analysis:
    """One pass of the rules over all programs."""

    def __init__(
        self,
        programs: Sequence[Program],
        integers: Mapping[str, torch.Tensor],
        fixed: Sequence[str],
        heads: Heads | Mapping[str, Heads],
        rejected: Mapping[tuple[int, int], frozenset[Any]],
        equal_parts: bool = False,
    ) -> None:
        self.space = LabelSpace()
        self.equal_parts = equal_parts  # whether the parts of a split keep the same positions
        self.attributes: dict[str, Axes] = {}
        self.results = [ProgramLabels(program) for program in programs]
        self.producers: dict[Port, Labels] = {}
        self.consumers: dict[Port, Labels] = {}
        self.unsupported: dict[str, None] = {}
        self.outputs: dict[str, None] = {}  # the names of the outputs, without their parts
        self.pinned: dict[str, set[str]] = {}  # by output, the parameters whose widths it fixes
        self.calls: list[Call] = []
        self._integers = integers
        self._fixed = fixed
        self._heads = heads
        self._rejected = rejected
        self._choices: dict[tuple[int, int], _Choice] = {}
        self._attention_labels: list[Labels] = []
        self._head_labels: list[Labels] = []
        for index, result in enumerate(self.results):
            self._run(index, result)

    def _run(self, index: int, result: ProgramLabels) -> None:
        self.index, self.result, self.program, self.axes = index, result, result.program, result.axes
        self.used = {v for call in self.program.calls for _, v in call.tensors()}
        self.used |= {leaf.id for leaf in self.program.outputs[0] if isinstance(leaf, Ref)}
        self.static = static_values(self.program)
        self._offset = len(self.calls)
        self.calls.extend(self.program.calls)
        for value in self.program.values:
            if value.origin == "input":
                self.axes[value.id] = (None,) * len(value.shape)
            elif value.origin != "call":
                self.axes[value.id] = self._attribute(
                    value.name, value.shape, f"{MODES[index]}:" if value.origin == "constant" else ""
                )
        for call in self.program.calls:
            found = find(call.op)
            outputs = self._no_rule(call) if found is None else found(Scope(self, call))
            for out, axes in zip(call.outputs, outputs, strict=True):
                if out is not None:
                    shape = self.program.values[out].shape
                    if len(axes) != len(shape) or any(a is not None and len(a) != s for a, s in zip(axes, shape, strict=True)):
                        raise GatorError(
                            f"the rule of {call.where()} gives axes {[None if a is None else len(a) for a in axes]} "
                            f"for a result of shape {tuple(shape)}; please report this"
                        )
                    self.axes[out] = tuple(axes)
        self._tie_assigned()
        self._fix_outputs()

    def _tie_assigned(self) -> None:
        """A parameter to which forward assigns a value is sliced like that value."""
        for name, value in self.program.assigned.items():
            own = self._attribute(name, self.program.values[value].shape, "")
            for labels, other in zip(own, self.axes[value], strict=True):
                if labels is not None:
                    self.space.tie(labels, np.zeros(1, dtype=np.int64) if other is None else other, -1, "assigned in forward")

    def _fix_outputs(self) -> None:
        found: dict[str, list[Labels]] = {}
        for leaf, name in zip(self.program.outputs[0], self.program.output_names, strict=True):
            if isinstance(leaf, Ref):
                found.setdefault(name.split(".")[0], []).extend(axis for axis in self.axes[leaf.id] if axis is not None)
        self.outputs.update(dict.fromkeys(found))
        labelled = {name: parts for name, parts in found.items() if parts}
        if len(self.outputs) > 1 and labelled:
            for name, parameters in pinned_parameters(self.space, self.attributes, labelled).items():
                self.pinned.setdefault(name, set()).update(parameters)
        for parts in labelled.values():
            for axis in parts:
                self.space.fix(axis, -1, "the network's output")

    def _attribute(self, name: str, shape: tuple[int, ...], scope: str) -> Axes:
        key = scope + name
        if key not in self.attributes:
            self.attributes[key] = tuple(self.space.fresh(size) for size in shape)
            if any(under(name, prefix) for prefix in self._fixed):
                for axis in self.attributes[key]:
                    if axis is not None:
                        self.space.fix(axis, -1, "selected by fixed=")
        return self.attributes[key]

    def _no_rule(self, call: Call) -> list[Axes]:
        touched = False
        for _, value in call.tensors():
            for axis in self.axes[value]:
                if axis is not None:
                    touched = True
                    self.space.fix(axis, self.position(call), f"{call.packet.__name__} has no rule")
        if touched:
            self.unsupported.setdefault(call.where())
        return [() if v is None else (None,) * len(self.program.values[v].shape) for v in call.outputs]

    def position(self, call: Call) -> int:
        return self._offset + call.index

    def add_read(self, call: Call, argument: Argument, axis: int, kind: ReadKind) -> None:
        self.result.reads.setdefault(call.index, []).append(Read(argument, axis, kind))

    def add_move(self, call: Call, source: int, axis: int, coordinates: Labels) -> None:
        self.result.moves.setdefault(call.index, {})[axis] = (source, coordinates)

    def add_port(self, role: Literal["producer", "consumer"], call: Call, value: int, axis: int) -> None:
        found = self.program.values[value]
        if found.origin == "attribute":
            port = Port(found.name.rpartition(".")[0] or found.name, found.name, axis)
        elif value in self.static or call.packet not in PRODUCTS:
            # A weight that is computed from parameters (a standardised weight, for example): the layer is the module that runs.
            port = self._origin(call, self.axes[value][axis]) or _computed_weight(call, axis)
        else:
            return
        labels = self.axes[value][axis]
        if labels is not None:
            ports = self.producers if role == "producer" else self.consumers
            ports.setdefault(port, labels)

    def _origin(self, call: Call, labels: Axis) -> Port | None:
        """The axis of a parameter of the running module that has these labels: of a transposed weight, or a stack of them."""
        for name, axes in self.attributes.items():
            if labels is not None and call.module and name.rpartition(".")[0] == call.module:
                for axis, own in enumerate(axes):
                    if own is not None and np.array_equal(own, labels):
                        return Port(call.module, name, axis)
        return None

    def mark_attention(self, labels: Axis) -> None:
        if labels is not None:
            self._attention_labels.append(labels)

    def mark_heads(self, labels: Axis) -> None:
        if labels is not None:
            self._head_labels.append(labels)

    def data_of(self, value: int) -> torch.Tensor | None:
        """The data of an integer constant or buffer, on the CPU; None for any other value, and for tensors without data."""
        found = self.program.values[value]
        tensor = self.program.constants[found.name] if found.origin == "constant" else None
        if found.origin == "attribute":
            tensor = self._integers.get(found.name)
        return None if tensor is None or without_data(tensor) else tensor.cpu()

    def is_written(self, value: int, after: int) -> bool:
        """Whether an in-place call after call `after` writes into the memory of this value."""
        storage = self.program.values[value].storage
        later = self.program.calls[after + 1 :]
        return any(c.mutates is not None and self.program.values[c.mutates].storage == storage for c in later)

    def choose(self, call: Call, options: dict[Any, int]) -> Any:
        key = (self.index, call.index)
        allowed = {k: n for k, n in options.items() if k not in self._rejected.get(key, frozenset())} or options
        # The last of equally good options, so that query, key and value make the same choice.
        chosen = max(reversed(list(allowed)), key=lambda k: allowed[k])
        self._choices[key] = _Choice(options, chosen)
        self.result.choices[call.index] = chosen
        return chosen

    def set_choice_labels(self, call: Call, labels: Axis) -> None:
        self._choices[(self.index, call.index)].labels = labels

    def choices_to_revisit(self) -> dict[tuple[int, int], Any]:
        """Choices to reject in the next pass: those whose labels are fixed, and head dimensions where heads are wanted."""
        table = self.space.table()
        contracted_by_size: dict[int, list[Labels]] = {}
        for labels in self._attention_labels:
            contracted_by_size.setdefault(len(labels), []).append(table[labels])
        dims_wanted = self._dims_wanted(table)
        heads: dict[tuple[int, int], Any] = {}
        fixed: dict[tuple[int, int], Any] = {}
        for key, choice in self._choices.items():
            if choice.labels is None or len(choice.options) < 2:
                continue
            roots = table[choice.labels]
            rejected = self._rejected.get(key, frozenset())
            others = {k: n for k, n in choice.options.items() if k != choice.chosen and n > 0}
            if not others:
                continue
            contracted = contracted_by_size.get(len(roots), []) if isinstance(choice.chosen, int) else []
            is_head_dims = any(np.isin(roots[roots != 0], other).any() for other in contracted)
            if (
                is_head_dims
                and max(others.values()) > 1
                and choice.chosen not in rejected
                and not np.isin(roots, dims_wanted).any()
            ):
                heads[key] = choice.chosen  # even if whole heads were rejected before: then every option is allowed again
            elif not roots.any() and not others.keys() <= rejected:
                fixed[key] = choice.chosen
        return heads or _far_apart(fixed)

    def attention_layers(self) -> list[str]:
        """The layers that write queries, keys or values: those with a label that an attention contracts or has as a head."""
        table = self.space.table()
        marked = {int(root) for labels in self._attention_labels for root in np.unique(table[labels])} - {0}
        marked |= {int(root) for labels in self._head_labels for root in np.unique(table[labels])} - {0}
        return [p.layer for p, labels in self.producers.items() if marked & set(np.unique(table[labels]).tolist())]

    def _dims_wanted(self, table: Labels) -> Labels:
        """Roots of the classes for which the user asked for head dimensions instead of whole heads."""
        if self._heads == "whole":
            return np.zeros(0, dtype=np.int64)
        if self._heads == "dims":
            return np.unique(table)
        names = {name for name, mode in self._heads.items() if mode == "dims"}
        found = [labels for port, labels in self.producers.items() if any(under(port.layer, name) for name in names)]
        return np.unique(table[np.concatenate(found)]) if found else np.zeros(0, dtype=np.int64)


def _far_apart(choices: dict[tuple[int, int], Any]) -> dict[tuple[int, int], Any]:
    """Choices at some distance from each other: of two that contradict each other only one may be changed in a pass."""
    result: dict[tuple[int, int], Any] = {}
    last: dict[int, int] = {}
    for (program, call), choice in sorted(choices.items()):
        if call - last.get(program, -_MIN_DISTANCE) >= _MIN_DISTANCE:
            result[program, call] = choice
            last[program] = call
    return result


def _computed_weight(call: Call, axis: int) -> Port:
    layer = call.module or call.packet.__name__
    return Port(layer, f"{layer}.weight", axis)


def static_values(program: Program) -> set[int]:
    """Values that are computed from parameters and constants alone; a stack of weights may be indexed by anything (experts)."""
    static = {value.id for value in program.values if value.origin in ("attribute", "constant")}
    for call in program.calls:
        stack = call.packet in (aten.index, aten.index_select) and len(program.values[call.value_at("self")].shape) > 2
        args = [call.value_at("self")] if stack else [v for _, v in call.tensors()]
        if args and all(v in static for v in args):
            static.update(v for v in call.outputs if v is not None)
    return static


def analyse(
    programs: Sequence[Program],
    integers: Mapping[str, torch.Tensor],
    *,
    fixed: Sequence[str] = (),
    heads: Heads | Mapping[str, Heads] = "whole",
    equal_parts: bool = False,
) -> Analysis:
    """Run the rules until no choice has to be revisited, or for the maximum number of passes."""
    rejected: dict[tuple[int, int], frozenset[Any]] = {}
    for _ in range(_MAX_PASSES):
        analysis = Analysis(programs, integers, fixed, heads, rejected, equal_parts)
        revisit = analysis.choices_to_revisit()
        if not revisit:
            break
        for key, choice in revisit.items():
            rejected[key] = rejected.get(key, frozenset()) | {choice}
    return analysis
