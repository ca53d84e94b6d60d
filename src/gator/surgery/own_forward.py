"""`OwnForward`: run a model's own forward with some of its calls changed, those that read an edge.

A call belongs to the module that was running when it was recorded. If that is a layer whose forward is the one operator, the
forward of the layer is replaced; in any other module the calls of torch functions are intercepted while its forward runs. The
model's class, its signature, the hooks of others and every path of its code stay as they are. A call that belongs to no
function of the user's code (an operator inside another one) cannot be reached in this way: `graph/reachable.py` lists those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from gator.errors import GatorError
from gator.graph.experts import experts_batched
from gator.graph.function_calls import FunctionMode, innermost_module
from gator.graph.global_state import fastpath_disabled
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import MODES, Call, Mode
from gator.graph.replaced_forward import ReplacedForward
from gator.private_torch import forward_pre_hooks_of
from gator.surgery.layers import Leaf, leaves_of
from gator.surgery.live_call import FunctionCall, LayerCall, LiveCall
from gator.surgery.liveness import DROPOUTS
from gator.surgery.slice import canonical_names

_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)  # with a fast path around their layers


class Reader(Protocol):
    """Computes a call that is about to run."""

    @property
    def call(self) -> Call: ...
    @property
    def identity(self) -> Hashable:
        """Readers with the same identity compute the same."""

    def __call__(self, live: LiveCall) -> Any: ...


Readers = Mapping[int, Reader]  # by index of the call
_Key = tuple[str, int]  # a function, and which call of it in one run of a module


@dataclass(frozen=True)
class ModuleReaders:
    """The readers of one module: one table for all of its runs in a forward, or one for each if they differ."""

    runs: tuple[Mapping[_Key, Reader], ...]
    counts: tuple[Mapping[str, int], ...]  # how often a run calls each function of which a call is changed

    @property
    def alike(self) -> bool:
        return len(self.runs) == 1


class ReadersOf:
    """The readers of one mode, by module."""

    def __init__(self, calls: tuple[Call, ...], readers: Readers, leaves: Mapping[str, Leaf]) -> None:
        runs: dict[str, dict[int, dict[_Key, Reader | None]]] = {}
        visits: dict[str, int] = {}
        for call in calls:
            if call.module in leaves:
                if call.packet not in leaves[call.module].packets:
                    continue
                run, key = visits.get(call.module, -1) + 1, ("", 0)
                visits[call.module] = run
            elif call.place is not None:
                run, key = call.place.visit, (call.place.function, call.place.ordinal)
            else:
                continue
            runs.setdefault(call.module, {}).setdefault(run, {})[key] = readers.get(call.index)
        self.modules = {
            name: _collapsed([found[run] for run in sorted(found)])
            for name, found in runs.items()
            if any(reader is not None for run in found.values() for reader in run.values())
        }


def _collapsed(runs: list[dict[_Key, Reader | None]]) -> ModuleReaders:
    changed = {function for run in runs for (function, _), reader in run.items() if reader is not None}
    kept = [{key: reader for key, reader in run.items() if key[0] in changed} for run in runs]
    identities = [{key: None if reader is None else reader.identity for key, reader in run.items()} for run in kept]
    if all(identity == identities[0] for identity in identities):
        kept = kept[:1]
    counts = tuple({function: sum(key[0] == function for key in run) for function in changed} for run in kept)
    return ModuleReaders(tuple({key: reader for key, reader in run.items() if reader is not None} for run in kept), counts)


class OwnForward:
    """Runs a model's own forward with readers. `current` gives those of the mode that the model is in.

    `start` is called before every forward of the model with its arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Hypergraph,
        current: Callable[[], ReadersOf | None],
        start: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None,
    ) -> None:
        self.model = model
        self.current = current
        self.start = start
        canonical = canonical_names(model)
        self.leaves: dict[Mode, Mapping[str, Leaf]] = {m: leaves_of(model, graph.of(m).program, canonical) for m in MODES}
        self.calls: dict[Mode, tuple[Call, ...]] = {mode: graph.of(mode).program.calls for mode in MODES}
        self._places = self._modules(graph)
        self._before: dict[str, Any] = {}
        self._hook: Any = None
        self._experts: ExitStack = ExitStack()
        self.visits: dict[str, int] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnForward:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__dict__ = {k: copy.deepcopy(v, memo) for k, v in self.__dict__.items() if k != "_experts"} | {
            "_experts": ExitStack()
        }
        return new

    def _modules(self, graph: Hypergraph) -> dict[str, Leaf | None]:
        """The modules that may need a reader, with the leaf that they are."""
        found: dict[str, Leaf | None] = {}
        for mode in MODES:
            for call in self.calls[mode]:
                if call.index in graph.of(mode).reads or call.packet in DROPOUTS or call.packet.__name__ == "batch_norm":
                    leaf = self.leaves[mode].get(call.module)
                    found[call.module] = leaf if found.get(call.module, leaf) is leaf else None
        return found

    def readers(self, mode: Mode, readers: Readers) -> ReadersOf:
        return ReadersOf(self.calls[mode], readers, self.leaves[mode])

    @property
    def attached(self) -> bool:
        return self._hook is not None

    def attach(self) -> None:
        self._experts.enter_context(experts_batched(self.model))  # as they were recorded
        for name, module in self._wrapped():
            before = module.__dict__.get("forward")
            self._before[name] = before
            module.forward = _Wrapped(self, name, module, self._places.get(name), module.forward)
        self._hook = self.model.register_forward_pre_hook(_Start(self), prepend=True, with_kwargs=True)

    def detach(self) -> None:
        for name, module in self._wrapped():
            if not isinstance(module.__dict__.get("forward"), _Wrapped):
                raise GatorError(
                    f"something else has replaced the forward of {name or 'the model'} since the gates were put on, so they "
                    "cannot be taken off\n"
                    "  Undo it first: accelerator.unwrap_model(model, keep_fp32_wrapper=False) for Accelerate's mixed "
                    "precision."
                )
        for name, module in self._wrapped():
            if self._before[name] is None:
                del module.forward
            else:
                module.forward = self._before[name]
        self._hook.remove()
        self._hook = None
        self._experts.close()
        self._before = {}

    def _wrapped(self) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self.model.named_modules():
            if name in self._places or isinstance(module, _FUSED):
                yield name, module

    def readers_of_run(self, name: str) -> tuple[Mapping[_Key, Reader], Mapping[str, int]] | None:
        """The readers of the run of a module that begins now."""
        current = self.current()
        found = None if current is None else current.modules.get(name)
        if found is None:
            return None
        if found.alike:
            return found.runs[0], found.counts[0]
        run = self.visits.get(name, 0)
        self.visits[name] = run + 1
        if run >= len(found.runs):
            raise GatorError(
                f"{name} runs more often in this forward than in the traced one, and what it reads differs from run to run\n"
                "  Trace the network with example inputs for which it runs as it does in training."
            )
        return found.runs[run], found.counts[run]


@dataclass
class _Start(ReplacedForward):
    """The hook that begins a forward of the model."""

    own: OwnForward

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        self.own.visits.clear()
        if self.own.start is not None:
            self.own.start(args, kwargs)


def own_forward_of(model: nn.Module) -> OwnForward | None:
    """What runs the forward of this model with a mask or with gates, if something does."""
    found = [hook.own for hook in forward_pre_hooks_of(model).values() if isinstance(hook, _Start)]
    return found[0] if found else None


class _Wrapped:
    """Replaces the forward of a module that has readers."""

    def __init__(self, own: OwnForward, name: str, module: nn.Module, leaf: Leaf | None, forward: Callable[..., Any]) -> None:
        self._own, self._name, self._module, self._leaf = own, name, module, leaf
        self._fused = isinstance(module, _FUSED)
        self.__wrapped__ = forward  # inspect.signature follows it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._fused:
            with fastpath_disabled():
                return self._run(args, kwargs)
        return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self._own.readers_of_run(self._name)
        if found is None:
            return self.__wrapped__(*args, **kwargs)
        readers, counts = found
        if self._leaf is not None:
            reader = readers["", 0]
            data = args[0] if args else next(iter(kwargs.values()))
            return reader(LayerCall(reader.call, self._module, self.__wrapped__, self._leaf.data, data))
        mode = _Intercepted(self._name, self._module, readers, counts)
        with mode:
            result = self.__wrapped__(*args, **kwargs)
        mode.check()
        return result


class _Intercepted(FunctionMode):
    """Runs the readers of one run of a module in place of the functions that it calls."""

    def __init__(self, name: str, module: nn.Module, readers: Mapping[_Key, Reader], counts: Mapping[str, int]) -> None:
        super().__init__()
        self._name, self._module, self._readers, self._counts = name, module, readers, counts
        self._seen: dict[str, int] = dict.fromkeys(counts, 0)

    def read(self, name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if name not in self._seen or innermost_module() is not self._module:
            return func(*args, **kwargs)
        ordinal = self._seen[name]
        self._seen[name] = ordinal + 1
        reader = self._readers.get((name, ordinal))
        if reader is None:
            return func(*args, **kwargs)
        return reader(FunctionCall(reader.call, func, args, kwargs))

    def check(self) -> None:
        if self._seen != self._counts:
            wrong = next(name for name, count in self._counts.items() if self._seen[name] != count)
            raise GatorError(
                f"{self._name or 'the model'} calls {wrong} {self._seen[wrong]} times in this forward, "
                f"{self._counts[wrong]} times in the traced one, so it is not clear which of them read the channels that are "
                "masked or gated\n"
                "  Trace the network with example inputs for which it runs as it does in training."
            )
