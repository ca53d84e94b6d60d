"""`OwnForward`: run a model's own forward with some of its calls changed, those that read an edge.

A call belongs to the module that was running when it was recorded. If that is a layer whose forward is the one operator, the
forward of the layer is replaced; in any other module the calls of torch functions are intercepted while its forward runs. The
model's class, its signature, the hooks of others and every path of its code stay as they are. A call that belongs to no
function of the user's code (an operator inside another one) cannot be reached in this way: `graph/reachable.py` lists those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from gator.errors import GatorError
from gator.graph.experts import experts_batched
from gator.graph.function_calls import FunctionMode, innermost_module
from gator.graph.global_state import fastpath_disabled
from gator.graph.hypergraph import Hypergraph
from gator.graph.program import MODES, Call, Mode
from gator.graph.replaced_forward import ReplacedForward
from gator.private_torch import parameters_of
from gator.surgery.layers import Leaf, leaves_of
from gator.surgery.live_call import FunctionCall, LayerCall
from gator.surgery.liveness import DROPOUTS
from gator.surgery.readers import ModuleReaders, Readers, by_module
from gator.surgery.slice import canonical_names

aten = torch.ops.aten
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)  # with a fast path around their layers


class OwnForward:
    """Runs a model's own forward with readers. `current` gives those of the mode that the model is in, None for no change.

    `start` is called before every forward of the model with its arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Hypergraph,
        current: Callable[[], Mapping[str, ModuleReaders] | None],
        start: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None,
    ) -> None:
        self.model = model
        self.current = current
        self.start = start
        canonical = canonical_names(model)
        self.leaves: dict[Mode, Mapping[str, Leaf]] = {m: leaves_of(model, graph.of(m).program, canonical) for m in MODES}
        self.calls: dict[Mode, tuple[Call, ...]] = {mode: graph.of(mode).program.calls for mode in MODES}
        self._places = self._modules_with_readers(graph)
        self._unseen = _unseen_modules(model, graph)
        self._replaced: list[
            tuple[nn.Module, _Wrapped, Any]
        ] = []  # module, what replaces its forward, what was assigned before
        self._experts = ExitStack()
        self.running = False  # whether a forward of the model is running

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnForward:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__dict__ = {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items() if name != "_experts"}
        new._experts = ExitStack()
        return new

    def _modules_with_readers(self, graph: Hypergraph) -> dict[str, Leaf | None]:
        """The modules that may need a reader, with the leaf that they are."""
        found: dict[str, Leaf | None] = {}
        for mode in MODES:
            for call in self.calls[mode]:
                if call.index in graph.of(mode).reads or call.packet in (aten.batch_norm, *DROPOUTS):
                    leaf = self.leaves[mode].get(call.module)
                    found[call.module] = leaf if found.get(call.module, leaf) is leaf else None
        return found

    def readers(self, mode: Mode, readers: Readers) -> dict[str, ModuleReaders]:
        return by_module(self.calls[mode], readers, self.leaves[mode])

    @property
    def attached(self) -> bool:
        return bool(self._replaced)

    def attach(self) -> None:
        self._experts.enter_context(experts_batched(self.model))  # as they were recorded
        for name, module in self._wrapped():
            wrapped = _Wrapped(self, name, module, self._places.get(name), module.forward)
            self._replaced.append((module, wrapped, module.__dict__.get("forward")))
            module.forward = wrapped

    def detach(self) -> None:
        for module, wrapped, _ in self._replaced:
            if module.__dict__.get("forward") is not wrapped:
                raise GatorError(
                    f"something else has replaced the forward of {wrapped.name or 'the model'} since, so the mask or the gates "
                    "cannot be taken off\n"
                    "  Undo it first: detach() another pruner, or accelerator.unwrap_model(model, keep_fp32_wrapper=False) for "
                    "Accelerate's mixed precision."
                )
        for module, _, before in self._replaced:
            if before is None:
                del module.forward
            else:
                module.forward = before
        self._replaced = []
        self._experts.close()

    def _wrapped(self) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self.model.named_modules():
            if (
                not name
                or name in self._places
                or isinstance(module, _FUSED)
                or any(name in names for names in self._unseen.values())
            ):
                yield name, module

    def check_seen(self, name: str) -> None:
        """Raise if a layer runs that did not when the network was traced: it does not know which channels are gone."""
        mode: Mode = "train" if self.model.training else "eval"
        if name in self._unseen[mode] and self.current() is not None:
            raise GatorError(
                f"{name} runs, which the traced forward did not use in {mode} mode: it may read channels that are removed\n"
                "  Trace the network with example inputs for which it runs."
            )


def _unseen_modules(model: nn.Module, graph: Hypergraph) -> dict[Mode, frozenset[str]]:
    """By mode, the modules with parameters of their own that no recorded call belongs to or uses."""
    found: dict[Mode, frozenset[str]] = {}
    for mode in MODES:
        program = graph.of(mode).program
        used = {call.module for call in program.calls} | {value.name.rpartition(".")[0] for value in program.attributes()}
        weighted = {name: module for name, module in model.named_modules() if parameters_of(module)}
        tensors = {id(p) for name in used & weighted.keys() for p in parameters_of(weighted[name]).values()}
        found[mode] = frozenset(
            name
            for name, module in weighted.items()
            if name not in used and not any(id(p) in tensors for p in parameters_of(module).values())
        )
    return found


def own_forward_of(model: nn.Module) -> OwnForward | None:
    """What runs the forward of this model with a mask or with gates, if something does."""
    found = model.__dict__.get("forward")
    return found.own if isinstance(found, _Wrapped) else None


class _Wrapped(ReplacedForward):
    """Replaces the forward of the model, and of each of its modules that has readers."""

    def __init__(self, own: OwnForward, name: str, module: nn.Module, leaf: Leaf | None, forward: Callable[..., Any]) -> None:
        self.own, self.name, self._module, self._leaf = own, name, module, leaf
        self._fused = isinstance(module, _FUSED)
        self.__wrapped__ = forward  # inspect.signature follows it

    def __deepcopy__(self, memo: dict[int, Any]) -> _Wrapped:
        new = _Wrapped.__new__(_Wrapped)
        memo[id(self)] = new
        new.__dict__ = {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()}
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise GatorError(
            "a model with gates or a mask on cannot be pickled (torch.save of the whole module does that)\n"
            "  Save model.state_dict() and pruner.state_dict(), or pruner.cut() with gator.save."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.own
        if self._module is not own.model or own.running:
            return self._run(args, kwargs)
        own.running = True
        try:
            if own.start is not None:
                own.start(args, kwargs)
            return self._run(args, kwargs)
        finally:
            own.running = False

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._fused:
            with fastpath_disabled():
                return self._read(args, kwargs)
        return self._read(args, kwargs)

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.own.check_seen(self.name)
        current = self.own.current()
        found = None if current is None else current.get(self.name)
        if found is None or not found.readers:
            return self.__wrapped__(*args, **kwargs)
        if self._leaf is not None:
            reader = found.readers["", 0]
            return reader(LayerCall(reader.call, self._module, self.__wrapped__, self._leaf.data, args, kwargs))
        mode = _Intercepted(self.name, self._module, found)
        with mode:
            result = self.__wrapped__(*args, **kwargs)
        mode.check()
        return result


class _Intercepted(FunctionMode):
    """Runs the readers of one run of a module in place of the functions that it calls."""

    def __init__(self, name: str, module: nn.Module, found: ModuleReaders) -> None:
        super().__init__()
        self._name, self._module, self._found = name, module, found
        self._seen: dict[str, int] = dict.fromkeys(found.counts, 0)
        self._with_gradients = torch.is_grad_enabled()

    def read(self, name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if name not in self._seen or innermost_module() is not self._module:
            return func(*args, **kwargs)
        ordinal = self._seen[name]
        self._seen[name] = ordinal + 1
        reader = self._found.readers.get((name, ordinal))
        if reader is None:
            return func(*args, **kwargs)
        if self._with_gradients and not torch.is_grad_enabled() and not reader.call.frozen:
            raise GatorError(
                f"{name} in {self._name or 'the model'} runs without gradients, as in a part that is recomputed in backward, "
                "where gates and masks cannot follow it\n"
                "  Pass a module to torch.utils.checkpoint.checkpoint instead of a function, with use_reentrant=False."
            )
        return reader(FunctionCall(reader.call, func, args, kwargs))

    def check(self) -> None:
        counts = self._found.counts
        if self._seen != counts:
            wrong = next(name for name, count in counts.items() if self._seen[name] != count)
            raise GatorError(
                f"{self._name or 'the model'} calls {wrong} {self._seen[wrong]} times in this forward, "
                f"{counts[wrong]} times in the traced one, so it is not clear which of them read the channels that are "
                "masked or gated\n"
                "  Trace the network with example inputs for which it runs as it does in training."
            )
