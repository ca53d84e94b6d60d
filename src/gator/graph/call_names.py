"""Stable names for the calls of a program: the module that runs, the operator, and a counter of such calls in the module.

A name does not depend on how a recording numbers its values, so it can be written to a file and read with another release of
torch. A network that was rewritten from another one keeps the names that the calls have in the original network.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import ClassVar

from gator.graph.program import Program


class Rewritten:
    """A network of generated code that knows which call of the original network each line of the code was made from."""

    origins: ClassVar[Mapping[CodeType, Mapping[int, str]]] = {}  # code -> line -> name of the call


def call_names(program: Program) -> dict[int, str]:
    """A name for every call by its index, "layer1.0.bn2/batch_norm/0": the first batch_norm that runs in layer1.0.bn2."""
    counts: dict[str, int] = {}
    names: dict[int, str] = {}
    for call in program.calls:
        place = f"{call.module}/{call.packet.__name__}"
        # A layer of a rewritten network may run more calls than the one its line was made from: it counts batches, for example.
        if call.origin and (not call.module or call.origin.rpartition("/")[0] == place):
            names[call.index] = call.origin
            continue
        counts[place] = counts.get(place, -1) + 1
        names[call.index] = f"{place}/{counts[place]}"
    return names


def module_of(name: str) -> str:
    """The module in the name of a call; empty for the network itself."""
    return name.split("/")[0]


def operator_of(name: str) -> str:
    """The operator in the name of a call."""
    return name.split("/")[1]
