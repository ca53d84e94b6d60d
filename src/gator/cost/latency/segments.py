"""A program divided into layers with their fused neighbours: what a runtime is likely to run as one kernel.

A segment has one call that multiplies and adds (its anchor) and the cheap calls that follow from its result: a norm, an
activation, a residual sum. Two segments are of one kind if they differ in nothing but the widths of their channels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from gator.cost.prices import Widths
from gator.graph.analysis import ProgramLabels
from gator.graph.hypergraph import Hypergraph
from gator.graph.labels import Axis
from gator.graph.macs import macs
from gator.graph.program import BatchInt, Call, Program, Ref, needed

_SIZES = ("size", "shape", "repeats", "dims", "split_size", "split_sizes", "normalized_shape", "pad", "num_groups")


@dataclass(frozen=True)
class Size:
    """The length of an axis as a linear function of the widths of edges."""

    base: int
    parts: tuple[tuple[int, int, int], ...]  # edge, positions on this axis when it is whole, width when it is whole

    def exact(self, widths: Widths) -> float:
        return self.base + sum(count * float(widths[edge]) / whole for edge, count, whole in self.parts)

    def at(self, widths: Widths) -> int:
        return round(self.exact(widths))

    @property
    def whole(self) -> int:
        return self.base + sum(count for _, count, _ in self.parts)

    @property
    def edges(self) -> frozenset[int]:
        return frozenset(edge for edge, _, _ in self.parts)


@dataclass(frozen=True)
class Segment:
    """An anchor and what is fused to it. `into` and `out` are the channels it reads and writes, None where they are fixed."""

    name: str  # of the layer that runs the anchor
    anchor: int
    calls: tuple[int, ...]
    inputs: tuple[int, ...]  # values that come from elsewhere
    outputs: tuple[int, ...]  # values that are read elsewhere
    into: Size | None
    out: Size | None
    edges: frozenset[int]
    kind: str
    title: str  # of the kind, for people
    group: str  # of kinds that are calibrated together

    @property
    def whole(self) -> tuple[int, int]:
        return self.into.whole if self.into else 0, self.out.whole if self.out else 0

    def sizes(self, widths: Widths) -> tuple[int, int]:
        """Channels read and written with these living widths."""
        return self.into.at(widths) if self.into else 0, self.out.at(widths) if self.out else 0

    def exact(self, widths: Widths) -> tuple[float, float]:
        """The same for widths that are no whole numbers."""
        return self.into.exact(widths) if self.into else 0.0, self.out.exact(widths) if self.out else 0.0


@dataclass(frozen=True)
class Border:
    """A value that one segment hands to others, all by index, with its lengths."""

    maker: int
    readers: tuple[int, ...]
    lengths: tuple[Size, ...]

    def elements(self, widths: Widths) -> float:
        """Of one example."""
        return float(np.prod([length.exact(widths) for length in self.lengths]))

    def slopes(self, widths: Widths) -> dict[int, float]:
        """Elements that one channel more would add, by edge."""
        edges = frozenset[int]().union(*(length.edges for length in self.lengths))
        wider = {edge: np.asarray(widths, dtype=np.float64) + (np.arange(len(widths)) == edge) for edge in edges}
        return {edge: self.elements(some) - self.elements(widths) for edge, some in wider.items()}


def segments_of(graph: Hypergraph) -> tuple[Segment, ...]:
    """The segments of the network in eval mode, in the order they run."""
    return tuple(_Divider(graph, graph.eval).segments())


def borders_of(graph: Hypergraph, segments: tuple[Segment, ...]) -> tuple[Border, ...]:
    """What the segments of a network hand to each other."""
    divider = _Divider(graph, graph.eval)
    readers: dict[int, list[int]] = {}
    for index, segment in enumerate(segments):
        for value in segment.inputs:
            readers.setdefault(value, []).append(index)
    return tuple(
        Border(index, tuple(readers[value]), divider.lengths(value))
        for index, segment in enumerate(segments)
        for value in segment.outputs
        if value in readers
    )


class _Divider:
    def __init__(self, graph: Hypergraph, labelled: ProgramLabels) -> None:
        self.graph, self.labelled = graph, labelled
        self.program: Program = labelled.program
        self.roots = graph.roots
        self.edge_at = np.full(len(self.roots), -1)
        for root, (edge, _) in graph.edge_of.items():
            self.edge_at[root] = edge

    def segments(self) -> list[Segment]:
        live = needed(self.program)
        calls = [call for call in self.program.calls if call.index in live]
        owner = self._owners(calls)
        groups: dict[int, list[Call]] = {}
        for call in calls:
            groups.setdefault(owner[call.index], []).append(call)
        made = {value: owner[call.index] for call in calls for value in call.outputs if value is not None}
        read: dict[int, set[int]] = {}
        for call in calls:
            for _, value in call.tensors():
                read.setdefault(value, set()).add(owner[call.index])
        returned = {leaf.id for leaf in self.program.outputs[0] if isinstance(leaf, Ref)}
        found = []
        for anchor, members in groups.items():
            own = {v for v, o in made.items() if o == anchor}
            inputs = [v for call in members for _, v in call.tensors() if v not in own and self._flows(v)]
            outputs = [v for v in own if v in returned or read.get(v, set()) - {anchor}]
            # What follows from weights alone still takes its batch and its device from an input.
            given = tuple(dict.fromkeys(inputs)) or self.program.inputs[:1]
            found.append(self._segment(members, anchor, given, tuple(sorted(outputs))))
        return found

    def _flows(self, value: int) -> bool:
        return self.program.values[value].origin in ("call", "input")

    def _owners(self, calls: list[Call]) -> dict[int, int]:
        """For every call the anchor it belongs to: itself, the latest one its arguments come from, or its first reader's."""
        owner: dict[int, int] = {}
        maker: dict[int, int] = {}  # value -> call
        waiting: list[Call] = []
        last = calls[-1].index if calls else 0
        for call in calls:
            before = [owner[maker[v]] for _, v in call.tensors() if v in maker and maker[v] in owner]
            if macs(call, lambda v: self.program.values[v].shape):
                owner[call.index] = last = call.index
            elif before:
                owner[call.index] = max(before)
            else:
                waiting.append(call)  # on weights or on the input alone
            maker.update({v: call.index for v in call.outputs if v is not None})
        readers: dict[int, list[int]] = {}
        for call in calls:
            for _, value in call.tensors():
                if value in maker:
                    readers.setdefault(maker[value], []).append(call.index)
        for call in reversed(waiting):
            owner[call.index] = min((owner[reader] for reader in readers.get(call.index, ())), default=last)
        return owner

    def size(self, axis: Axis) -> Size | None:
        """The length of an axis, None if it never changes."""
        if axis is None:
            return None
        edges = self.edge_at[self.roots[axis]]
        found, counts = np.unique(edges[edges >= 0], return_counts=True)
        if not len(found):
            return None
        parts = tuple((int(e), int(n), self.graph.edges[e].width) for e, n in zip(found, counts, strict=True))
        return Size(int((edges < 0).sum()), parts)

    def lengths(self, value: int) -> tuple[Size, ...]:
        """Of one example: the batch counts as often as it does for one."""
        axes = list(zip(self.program.values[value].shape, self.labelled.axes[value], strict=True))
        plain = (length.slope if isinstance(length, BatchInt) else int(length) for length, _ in axes)
        return tuple(self.size(axis) or Size(length, ()) for length, (_, axis) in zip(plain, axes, strict=True))

    def _segment(self, calls: list[Call], anchor: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Segment:
        main = next((call for call in calls if call.index == anchor), calls[0])
        into = self._first(main, reads=True)
        out = self._first(main, reads=False)
        values = {v for call in calls for _, v in call.tensors()} | {v for call in calls for v in call.outputs if v is not None}
        values |= set(inputs)
        sizes = [size for v in sorted(values) for axis in self.labelled.axes[v] if (size := self.size(axis)) is not None]
        if out is None and into is None and sizes:
            into = sizes[0]
        if into == out:
            out = None  # depthwise: what is written is what is read, one axis of a grid
        edges = frozenset[int]().union(*(size.edges for size in sizes))
        text = _Writer(self, into, out).text(calls, inputs)
        kind = hashlib.sha256(text.encode()).hexdigest()[:16]
        name = main.module or main.packet.__name__
        group = self._group(main)
        words = [group, *self._words(main), *(f"+ {c.packet.__name__.rstrip('_')}" for c in calls if c is not main)]
        return Segment(
            name, anchor, tuple(c.index for c in calls), inputs, outputs, into, out, edges, kind, " ".join(words), group
        )

    def _first(self, call: Call, *, reads: bool) -> Size | None:
        """The first axis that changes, of what the call sums over or of its result."""
        if reads:
            for read in self.labelled.reads.get(call.index, ()):
                size = self.size(self.labelled.axes[call.value_at(read.argument)][read.axis])
                if size is not None:
                    return size
            return None
        value = call.outputs[0]
        assert value is not None
        return next((size for axis in self.labelled.axes[value] if (size := self.size(axis)) is not None), None)

    def _group(self, main: Call) -> str:
        words = [main.packet.__name__]
        weight = main.args.get("weight")
        kernel = self.program.values[weight.id].shape[2:] if isinstance(weight, Ref) else ()
        words += ["x".join(map(str, kernel))] if kernel else []
        return " ".join([*words, *(["grouped"] if main.args.get("groups", 1) > 1 else [])])

    def _words(self, main: Call) -> list[str]:
        steps = main.args.get("stride") or [1]
        out = self.program.values[main.outputs[0] or 0].shape
        words = [f"stride {steps[0]}"] if isinstance(steps, (list, tuple)) and steps[0] != 1 else []
        return [*words, "to " + "x".join(map(str, out[2:]))] if len(out) > 2 else words


class _Writer:
    """Writes a segment down without the widths of its channels, so that segments of one kind read the same."""

    def __init__(self, divider: _Divider, into: Size | None, out: Size | None) -> None:
        self.divider = divider
        self.letters: dict[Size, str] = {}
        for size, letter in ((into, "in"), (out, "out")):
            if size is not None:
                self.letters.setdefault(size, letter)

    def text(self, calls: list[Call], inputs: tuple[int, ...]) -> str:
        numbers: dict[int, int] = {v: n for n, v in enumerate(inputs)}
        lines = [f"{numbers[v]}: {self._shape(v)}" for v in inputs]
        for call in calls:
            grouped = self.divider.labelled.choices.get(call.index) == "groups"
            parts = []
            for name, arg in sorted(call.args.items()):
                if name not in _SIZES and not (name == "groups" and grouped):
                    parts.append(f"{name}={self._argument(arg, numbers)}")
            for value in call.outputs:
                if value is not None:
                    numbers.setdefault(value, len(numbers))
            made = [f"{numbers[v]}: {self._shape(v)}" for v in call.outputs if v is not None]
            lines.append(f"{'; '.join(made)} = {call.op}({', '.join(parts)})")
        return "\n".join(lines)

    def _argument(self, arg: Any, numbers: dict[int, int]) -> str:
        if isinstance(arg, Ref):
            if arg.id not in numbers:
                numbers[arg.id] = len(numbers)
                return f"{numbers[arg.id]}: {self._shape(arg.id)}"
            return str(numbers[arg.id])
        if isinstance(arg, (list, tuple)):
            return "[" + ", ".join(self._argument(item, numbers) for item in arg) + "]"
        return "batch" if isinstance(arg, BatchInt) else str(arg)

    def _shape(self, value: int) -> str:
        found = self.divider.program.values[value]
        sizes = []
        for length, axis in zip(found.shape, self.divider.labelled.axes[value], strict=True):
            size = self.divider.size(axis)
            if size is not None:
                sizes.append(self.letters.setdefault(size, f"other{len(self.letters)} of {size.whole}"))
            elif isinstance(length, BatchInt):
                sizes.append(f"{length.slope}b+{length.offset}")
            else:
                sizes.append(str(int(length)))
        return f"{found.dtype}[{', '.join(sizes)}]"
