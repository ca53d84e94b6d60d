"""The readers of a network by the module that they run in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gator.errors import GatorError
from gator.graph.program import Call
from gator.surgery.layers import Leaf
from gator.surgery.live_call import LiveCall
from gator.surgery.liveness import DROPOUTS


class Reader(Protocol):
    """Computes a call that is about to run."""

    @property
    def call(self) -> Call: ...
    @property
    def identity(self) -> Hashable:
        """Readers with the same identity compute the same."""

    def __call__(self, live: LiveCall) -> Any: ...


Readers = Mapping[int, Reader]  # by index of the call
Key = tuple[str, int]  # a function, and which call of it in one run of a module


@dataclass(frozen=True)
class ModuleReaders:
    """The readers of one module, the same in all its runs, and how often a run calls each of the functions they replace."""

    readers: Mapping[Key, Reader]
    counts: Mapping[str, int]


def by_module(calls: tuple[Call, ...], readers: Readers, leaves: Mapping[str, Leaf]) -> dict[str, ModuleReaders]:
    """The readers of one mode, by module; the one reader of a layer has the key ("", 0)."""
    runs: dict[str, dict[int, dict[Key, Reader | None]]] = {}
    for call in calls:
        if call.place is None or (call.module in leaves and call.packet not in leaves[call.module].packets):
            continue
        key = ("", 0) if call.module in leaves else (call.place.function, call.place.ordinal)
        runs.setdefault(call.module, {}).setdefault(call.place.visit, {})[key] = readers.get(call.index)
    return {
        name: _of_module(name, list(found.values()))
        for name, found in runs.items()
        if any(reader is not None for run in found.values() for reader in run.values())
    }


def _of_module(name: str, runs: list[dict[Key, Reader | None]]) -> ModuleReaders:
    changed = {function for run in runs for (function, _), reader in run.items() if reader is not None}
    kept = [{key: reader for key, reader in run.items() if key[0] in changed} for run in runs]
    identities = [{key: None if reader is None else reader.identity for key, reader in run.items()} for run in kept]
    if any(identity != identities[0] for identity in identities):
        found = [reader for run in kept for reader in run.values() if reader is not None]
        if all(reader.call.packet in DROPOUTS for reader in found):
            return ModuleReaders({}, {})  # a dropout that several blocks share, one of which has become a constant
        raise GatorError(
            f"{name} runs several times in a forward, and one of its runs has become a constant\n"
            "  Keep a channel of every edge that it reads, or give every place a layer of its own."
        )
    counts = {function: sum(key[0] == function for key in kept[0]) for function in changed}
    return ModuleReaders({key: reader for key, reader in kept[0].items() if reader is not None}, counts)
