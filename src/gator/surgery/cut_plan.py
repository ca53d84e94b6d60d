"""`CutPlan`: what was cut, relative to the original architecture, as plain data for JSON files and checkpoints.

It refers to edges, layers and operators by name, never by their number in a recording. Reading a plan runs no code: every value
is checked against its declared type, and anything else is a FileError.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from dataclasses import field as field_of
from typing import Any, Literal

from gator.errors import FileError
from gator.graph.analysis import Heads
from gator.graph.hypergraph import heads_from_data
from gator.graph.inputs import Inputs
from gator.graph.json_fields import counts, field, strings
from gator.graph.program import MODES, Mode

FORMAT = 1
PREFIX = "folded_"  # of the names of constants
Term = Literal["self", "other"]  # the two arguments of a sum
_TERMS: tuple[Term, Term] = ("self", "other")
Form = Literal["class", "graph"]  # the user's own class, or an fx.GraphModule over its layers
FORMS: tuple[Form, Form] = ("class", "graph")


@dataclass(frozen=True)
class Constant:
    """The constant result of a removed branch: a parameter, or a value that was added to the bias of a neighbouring layer."""

    mode: Mode
    made_by: str  # the name of the call whose result it is (graph/call_names.py)
    name: str  # of the parameter
    same_along: tuple[int, ...]  # axes along which it is constant, so that only one position is stored
    absorbed: bool = False  # it was added to a bias, so there is no such parameter


@dataclass(frozen=True)
class Omitted:
    """A term that was removed from a sum because its branch was removed and its result is zero."""

    mode: Mode
    sum: str  # the name of the call (graph/call_names.py)
    argument: Term


@dataclass(frozen=True)
class RemovedBranches:
    """What the branches that a cut removed leave behind: constants, and sums without one of their terms."""

    constants: tuple[Constant, ...] = ()
    omitted: tuple[Omitted, ...] = ()


@dataclass(frozen=True)
class EdgeWidth:
    """An edge of the architecture that a plan is for."""

    name: str
    width: int


@dataclass(frozen=True)
class Cut:
    """One cut of a network that is traced with these settings: the kept units of every edge that loses some."""

    inputs: Inputs
    fixed: tuple[str, ...]
    heads: Heads | dict[str, Heads]
    edges: tuple[EdgeWidth, ...]
    kept: dict[str, tuple[int, ...]]
    form: Form
    removed_branches: RemovedBranches
    keep_class: bool = False
    attributes: dict[str, int] = field_of(default_factory=dict)  # sizes that modules hold as attributes, after the cut


@dataclass(frozen=True)
class CutPlan:
    """How to make a cut network from a fresh instance of its architecture: `gator.apply(plan, model)`.

    All cuts of a network are composed into one. There is a second cut, relative to the result of the first, only if a later
    cut separates channels that are tied in the original architecture (because a branch that tied them was removed).
    """

    cuts: tuple[Cut, ...]

    def to_json(self) -> str:
        """The plan as JSON, for `from_json`. Raises GatorError for example inputs that JSON cannot represent.

        >>> torch.save({"plan": gator.plan(small).to_json(), "weights": small.state_dict()}, "small.pt")
        """
        return json.dumps(self.to_data())

    def to_data(self) -> dict[str, Any]:
        """The plan as dictionaries, lists, strings and numbers."""
        return {"format": FORMAT, "cuts": [_cut_to_data(cut) for cut in self.cuts]}

    @staticmethod
    def from_json(text: str) -> CutPlan:
        """The plan that `to_json` wrote. Raises FileError for text that it did not write."""
        try:
            data = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise FileError(f"the plan is damaged: {error}") from error
        return CutPlan.from_data(data)

    @staticmethod
    def from_data(data: Any) -> CutPlan:
        """The plan that `to_data` gave. Raises FileError for anything else."""
        try:
            found = field(data, "format", int)
            if found != FORMAT:
                raise FileError(f"the plan has format {found}; this version of gator reads format {FORMAT}")
            cuts = tuple(_cut_from_data(cut) for cut in field(data, "cuts", list))
            if not cuts:
                raise ValueError("it has no cut")
        except (ValueError, RecursionError) as error:
            raise FileError(f"the plan is damaged: {error}") from error
        return CutPlan(cuts)


def _cut_to_data(cut: Cut) -> dict[str, Any]:
    return {
        "inputs": cut.inputs.to_data(),
        "fixed": list(cut.fixed),
        "heads": cut.heads,
        "keep_class": cut.keep_class,
        "attributes": cut.attributes,
        "edges": {edge.name: edge.width for edge in cut.edges},
        "kept": {name: list(units) for name, units in cut.kept.items()},
        "form": cut.form,
        "constants": [
            {"mode": c.mode, "made_by": c.made_by, "name": c.name, "same_along": list(c.same_along), "absorbed": c.absorbed}
            for c in cut.removed_branches.constants
        ],
        "omitted": [{"mode": o.mode, "sum": o.sum, "argument": o.argument} for o in cut.removed_branches.omitted],
    }


def _attributes(data: Any) -> dict[str, int]:
    found = field(data, "attributes", dict)
    return {name: field(found, name, int) for name in found}


def _cut_from_data(data: Any) -> Cut:
    form = field(data, "form", str)
    if form not in FORMS:
        raise ValueError(f"'form' is {form!r}")
    edges, kept = field(data, "edges", dict), field(data, "kept", dict)
    return Cut(
        inputs=Inputs.from_data(data.get("inputs")),
        fixed=strings(data, "fixed"),
        heads=heads_from_data(data),
        keep_class=field(data, "keep_class", bool) if "keep_class" in data else False,
        attributes=_attributes(data) if "attributes" in data else {},
        edges=tuple(EdgeWidth(name, field(edges, name, int)) for name in edges),
        kept={name: counts(kept, name) for name in kept},
        form=form,
        removed_branches=RemovedBranches(
            tuple(_constant_from_data(constant) for constant in field(data, "constants", list)),
            tuple(_omitted_from_data(omitted) for omitted in field(data, "omitted", list)),
        ),
    )


def _constant_from_data(data: Any) -> Constant:
    name = field(data, "name", str)
    if not name.isidentifier() or not name.startswith(PREFIX):
        raise ValueError(f"a constant is named {name!r}")
    made_by, same_along = _call_name(data, "made_by"), counts(data, "same_along")
    return Constant(_mode(data), made_by, name, same_along, field(data, "absorbed", bool))


def _omitted_from_data(data: Any) -> Omitted:
    argument = field(data, "argument", str)
    if argument not in _TERMS:
        raise ValueError(f"argument {argument!r} of a sum")
    return Omitted(_mode(data), _call_name(data, "sum"), argument)


def _mode(data: Any) -> Mode:
    mode = field(data, "mode", str)
    if mode not in MODES:
        raise ValueError(f"'mode' is {mode!r}")
    return mode


def _call_name(data: Any, name: str) -> str:
    found = field(data, name, str)
    if found.count("/") < 2:
        raise ValueError(f"{name!r} is {found!r}; expected module/operator/number")
    return found
