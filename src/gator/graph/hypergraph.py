"""The hypergraph: edges of channels that the same layers write and read; frozen data that can be printed and saved as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gator.errors import GatorError
from gator.graph.analysis import HEADS, Heads, Port, ProgramLabels
from gator.graph.explain import Explainer
from gator.graph.inputs import Inputs
from gator.graph.json_fields import counts, strings
from gator.graph.json_fields import field as read
from gator.graph.labels import Axes, Labels
from gator.graph.program import ImageInt, Mode
from gator.graph.reachable import unreachable
from gator.suggest import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = 2  # of the JSON; format 1 stored the structure of the inputs as torch serializes it


@dataclass(frozen=True)
class Member:
    """One axis of one parameter or buffer: `units[i]` is the unit of the edge that position i belongs to, or -1."""

    parameter: str
    axis: int
    units: tuple[int, ...]


@dataclass(frozen=True)
class Edge:
    """Channels that the same layers write and read (paper, section 3.2); each is kept or removed in all of them at once."""

    name: str  # of its first producer: stable from run to run
    width: int  # how many units can be kept or removed
    producers: tuple[str, ...]  # C_out: the layers that write these channels
    consumers: tuple[str, ...]  # C_in: the layers that read them
    members: tuple[Member, ...] = field(repr=False)  # every parameter and buffer axis that shrinks with them
    parameters: int  # elements of the parameters it touches
    macs: int  # multiply-adds of the calls it touches, for the batch of the example inputs


@dataclass(frozen=True, repr=False)
class SavedGraph:
    """The edges of a network as plain data, in the order in which forward uses them: what is saved as JSON and loaded again.

    It can be printed and inspected. To mask or cut with it, pass it together with the model, which is then traced again.
    """

    edges: tuple[Edge, ...]
    inputs: Inputs
    unsupported: tuple[str, ...]  # calls of operators without a rule: the axes they use are fixed
    parameters: int  # of the whole network
    prunable_parameters: int  # elements of parameters with at least one axis on an edge
    macs: int  # multiply-adds of one forward pass (eval) of the example inputs
    fixed: tuple[str, ...] = ()
    heads: Heads | dict[str, Heads] = "whole"
    keep_class: bool = False  # only what the user's class works with can be removed
    notes: tuple[str, ...] = ()  # what the recording assumed, and hints

    @cached_property
    def _by_name(self) -> dict[str, Edge]:
        return {edge.name: edge for edge in self.edges}

    @cached_property
    def starts(self) -> Labels:
        """The number of the first unit of each edge if the units of all edges are numbered in order; last, their total."""
        return np.concatenate([[0], np.cumsum([edge.width for edge in self.edges], dtype=np.int64)])

    def masks_of(self, alive: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
        """The mask of every edge that has lost units, from one mask over the units of all edges."""
        masks = {edge.name: alive[start : start + edge.width] for edge, start in zip(self.edges, self.starts, strict=False)}
        return {name: mask for name, mask in masks.items() if not mask.all()}

    def widths_of(self, alive: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The number of living units of each edge, from one mask over the units of all edges."""
        return np.add.reduceat(np.append(alive, False).astype(np.int64), self.starts[:-1]) if self.edges else self.starts[:0]

    def __getitem__(self, name: str) -> Edge:
        if name not in self._by_name:
            hint = did_you_mean(name, self._by_name, otherwise="print(graph) lists the edges")
            raise GatorError(f"the graph has no edge {name!r}; {hint}")
        return self._by_name[name]

    def index_of(self, name: str) -> int:
        """The position of an edge in `edges`."""
        return self.edges.index(self[name])

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def prunable_share(self) -> float:
        """The share of the parameters that lie on at least one prunable axis."""
        return self.prunable_parameters / max(self.parameters, 1)

    def __repr__(self) -> str:
        units = sum(edge.width for edge in self.edges)
        return f"<{type(self).__name__}: {len(self.edges)} edges, {units:,} units; print it for a table>"

    def __str__(self) -> str:
        rows = [("edge", "width", "producers", "consumers", "parameters", "MACs")]
        for edge in self.edges:
            rows.append(
                (
                    edge.name,
                    str(edge.width),
                    _names(edge.producers),
                    _names(edge.consumers),
                    f"{edge.parameters:,}",
                    f"{edge.macs:,}",
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        right = {1, 4, 5}
        lines = [
            "  ".join(
                c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        lines.insert(1, "-" * len(lines[0]))
        units, plural = sum(edge.width for edge in self.edges), "" if len(self.edges) == 1 else "s"
        lines.append(
            f"{len(self.edges)} edge{plural}, {units:,} units; {self.prunable_share:.1%} of {self.parameters:,} parameters on "
            f"a prunable axis; {self.macs:,} MACs ({2 * self.macs:,} FLOPs)"
        )
        lines.append("parameters and MACs are those of every layer an edge touches, so the rows overlap")
        for call in self.unsupported:
            lines.append(f"no rule for this operator, its axes are fixed: {call}")
        lines.extend(f"note: {note}" for note in self.notes)
        return "\n".join(lines)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it is immutable

    def to_json(self) -> str:
        """The graph as JSON, for `from_json`. Raises GatorError for example inputs that JSON cannot represent."""
        data = {
            "format": FORMAT,
            "edges": [asdict(edge) for edge in self.edges],
            "inputs": self.inputs.to_data(),
            "unsupported": list(self.unsupported),
            "parameters": self.parameters,
            "prunable_parameters": self.prunable_parameters,
            "macs": self.macs,
            "fixed": list(self.fixed),
            "heads": self.heads,
            "keep_class": self.keep_class,
            "notes": list(self.notes),
        }
        return json.dumps(data)

    @staticmethod
    def from_json(text: str) -> SavedGraph:
        """The graph that `to_json` wrote. Raises GatorError for text that it did not write."""
        try:
            data = json.loads(text)
            found = read(data, "format", int)
            if found != FORMAT:
                raise GatorError(f"the graph has format {found}, this version of gator reads format {FORMAT}")
            return SavedGraph(
                edges=tuple(_edge_from_data(edge) for edge in read(data, "edges", list)),
                inputs=Inputs.from_data(data.get("inputs")),
                unsupported=strings(data, "unsupported"),
                parameters=read(data, "parameters", int),
                prunable_parameters=read(data, "prunable_parameters", int),
                macs=read(data, "macs", int),
                fixed=strings(data, "fixed"),
                heads=heads_from_data(data),
                keep_class=read(data, "keep_class", bool) if "keep_class" in data else False,
                notes=strings(data, "notes") if "notes" in data else (),
            )
        except (ValueError, RecursionError) as error:
            raise GatorError(f"not a graph in JSON form: {error}") from error


@dataclass(frozen=True, repr=False, eq=False)
class Hypergraph(SavedGraph):
    """The graph of a traced network: its edges, and the programs of train and eval mode with their labels."""

    train: ProgramLabels = field(kw_only=True)
    eval: ProgramLabels = field(kw_only=True)
    roots: Labels = field(kw_only=True)  # the class of every label
    attributes: dict[str, Axes] = field(kw_only=True)  # the labels of every parameter, buffer and constant
    edge_of: dict[int, tuple[int, int]] = field(kw_only=True)  # root -> (edge, unit)
    baked: frozenset[str] = field(
        kw_only=True
    )  # weights that the model computes in forward and that the graph treats as parameters
    explainer: Explainer = field(kw_only=True)
    producers: tuple[Port, ...] = field(kw_only=True)  # the weights that write channels
    sizes_free: list[bool] = field(default_factory=list, kw_only=True)  # a cache: see trace.sizes_free
    for_any_image: list[Any] = field(default_factory=list, kw_only=True)  # a cache: see trace.for_any_image
    small_inputs: list[Inputs] = field(default_factory=list, kw_only=True)  # a cache: see trace.small_inputs

    @property
    def programs(self) -> tuple[ProgramLabels, ProgramLabels]:
        """The programs of both modes, in the order of MODES."""
        return self.train, self.eval

    def of(self, mode: Mode) -> ProgramLabels:
        return self.train if mode == "train" else self.eval

    @property
    def takes_any_image(self) -> bool:
        """Whether the programs have formulas for the height and width of images."""
        return any(isinstance(size, ImageInt) for value in self.eval.program.values for size in value.shape)

    def explain(self, name: str) -> str:
        """Why the channels of an edge, layer or parameter are tied together, or why they are fixed."""
        if name not in self._by_name:
            return self.explainer.parameter(name, self.edges)
        edge = self._by_name[name]
        text = self.explainer.edge(edge)
        calls = dict.fromkeys(call.where() for call in unreachable(self, self.edges.index(edge)))
        if calls:
            text += "\n  with gates or a mask on, a recording of the network runs, because its own forward gives no access to"
        return "\n    ".join([text, *calls])

    def saved(self) -> SavedGraph:
        """The same graph without its programs."""
        return SavedGraph(**{each.name: getattr(self, each.name) for each in fields(SavedGraph)})


def _names(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, +{len(names) - most}"


def _edge_from_data(data: Any) -> Edge:
    members = tuple(
        Member(read(m, "parameter", str), read(m, "axis", int), counts(m, "units", least=-1))
        for m in read(data, "members", list)
    )
    name, width, parameters, macs = (read(data, key, kind) for key, kind in _EDGE_FIELDS)
    return Edge(name, width, strings(data, "producers"), strings(data, "consumers"), members, parameters, macs)


def heads_from_data(data: Any) -> Heads | dict[str, Heads]:
    """The `heads=` of a trace: one value for all layers, or a dict by layer name. Raises ValueError for anything else."""
    heads = data.get("heads") if isinstance(data, dict) else None
    given = heads.values() if isinstance(heads, dict) else [heads]
    if not all(mode in HEADS for mode in given):
        raise ValueError(f"'heads' is {heads!r}")
    return heads  # type: ignore[return-value]


_EDGE_FIELDS: tuple[tuple[str, type[Any]], ...] = (("name", str), ("width", int), ("parameters", int), ("macs", int))


def group(
    roots: Labels,
    attributes: dict[str, Axes],
    producers: dict[Port, Labels],
    consumers: dict[Port, Labels],
) -> list[tuple[str, list[int], tuple[str, ...], tuple[str, ...], tuple[Member, ...]]]:
    """Classes with the same members, producers and consumers, as (name, roots, producers, consumers, members)."""
    axes = [
        (name, axis, labels) for name, parts in attributes.items() for axis, labels in enumerate(parts) if labels is not None
    ]
    ports = [*producers.items()]
    readers = [*consumers.items()]
    first = len(ports) + len(readers)
    touched = [np.unique(roots[labels]) for _, labels in (*ports, *readers)]
    touched += [np.unique(roots[labels]) for _, _, labels in axes]
    who = np.repeat(np.arange(len(touched)), [len(found) for found in touched])
    which = np.concatenate(touched) if touched else np.zeros(0, dtype=np.int64)
    order = np.lexsort((who, which))
    who, which = who[order], which[order]
    ends = [*np.flatnonzero(np.diff(which)) + 1, len(which)]
    by_signature: dict[tuple[int, ...], list[int]] = {}
    start = 0
    for end in ends:
        if end > start and which[start]:
            by_signature.setdefault(tuple(who[start:end].tolist()), []).append(int(which[start]))
        start = end
    unit_of = np.full(len(roots), -1)
    found = []
    used: dict[str, int] = {}
    keyed = [(key, members) for key, members in by_signature.items() if key[0] < len(ports)]
    for key, classes in sorted(keyed, key=lambda item: (item[0][0], item[1][0])):
        writes = tuple(dict.fromkeys(ports[k][0].layer for k in key if k < len(ports)))
        reads = tuple(dict.fromkeys(readers[k - len(ports)][0].layer for k in key if len(ports) <= k < first))
        unit_of[classes] = np.arange(len(classes))
        members = []
        for k in key:
            if k >= first and ":" not in axes[k - first][0]:
                name, axis, labels = axes[k - first]
                members.append(Member(name, axis, tuple(unit_of[roots[labels]].tolist())))
        unit_of[classes] = -1
        used[writes[0]] = used.get(writes[0], 0) + 1
        label = writes[0] if used[writes[0]] == 1 else f"{writes[0]}#{used[writes[0]]}"
        found.append((label, classes, writes, reads, tuple(members)))
    return found
