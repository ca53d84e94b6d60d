"""A call that is about to run, with the tensors it is given now: of a layer, of a torch function, or in a written graph."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from gator.graph.program import Argument, Call, Ref
from gator.private_torch import schema_of


@dataclass(frozen=True)
class LiveCall(ABC):
    """A recorded call as it runs now. Readers look at its tensors, exchange some, and run it or something else instead."""

    call: Call

    @abstractmethod
    def tensor(self, argument: Argument) -> Tensor:
        """The tensor that is passed as this argument now."""

    @abstractmethod
    def given(self, argument: Argument, tensor: Tensor) -> LiveCall:
        """The call with another tensor as this argument."""

    @abstractmethod
    def run(self) -> Any:
        """What the call returns."""

    def named(self) -> dict[str, Any]:
        """The arguments by the operator's names: tensors as they are now, everything else as it was recorded."""

        def now(argument: Argument, recorded: Any) -> Any:
            return self.tensor(argument) if isinstance(recorded, Ref) else recorded

        return {
            name: [now((name, i), item) for i, item in enumerate(arg)] if _is_list(arg) else now((name, None), arg)
            for name, arg in self.call.args.items()
        }


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value))


def _is_list(arg: Any) -> bool:
    return isinstance(arg, (list, tuple)) and any(isinstance(item, Ref) for item in arg)


@dataclass(frozen=True)
class OperatorCall(LiveCall):
    """A call with its arguments by the operator's names."""

    args: Mapping[str, Any]

    def tensor(self, argument: Argument) -> Tensor:
        name, position = argument
        found: Tensor = self.args[name] if position is None else self.args[name][position]
        return found

    def given(self, argument: Argument, tensor: Tensor) -> OperatorCall:
        name, position = argument
        return replace(self, args={**self.args, name: tensor if position is None else _with(self.args[name], position, tensor)})

    def run(self) -> Any:
        return self.call.op(**self.args)


@dataclass(frozen=True)
class LayerCall(LiveCall):
    """A call of a layer whose forward is a single operator on its own parameters."""

    layer: nn.Module
    forward: Callable[..., Any]  # the layer's own
    data_name: str  # the operator's argument that is the layer's input
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def tensor(self, argument: Argument) -> Tensor:
        if argument[0] != self.data_name:
            weight: Tensor = getattr(self.layer, argument[0])
            return weight
        data: Tensor = self.args[0] if self.args else self.kwargs["input"]
        return data

    def given(self, argument: Argument, tensor: Tensor) -> LiveCall:
        if argument[0] != self.data_name:
            return OperatorCall(self.call, self.named()).given(argument, tensor)
        if self.args:
            return replace(self, args=(tensor, *self.args[1:]))
        return replace(self, kwargs={**self.kwargs, "input": tensor})

    def run(self) -> Any:
        return self.forward(*self.args, **self.kwargs)

    def named(self) -> dict[str, Any]:
        """As the layer is set now: its stride or epsilon may have been changed."""
        settings = {name: vars(self.layer)[name] for name in self.call.args if name in vars(self.layer)}
        return {**super().named(), **settings}


@dataclass(frozen=True)
class FunctionCall(LiveCall):
    """A call of a torch function with the arguments that the user's code passes."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def tensor(self, argument: Argument) -> Tensor:
        where, position = self._where(argument)
        found: Any = self.kwargs[where] if isinstance(where, str) else self.args[where]
        tensor: Tensor = found if position is None else found[position]
        return tensor

    def given(self, argument: Argument, tensor: Tensor) -> FunctionCall:
        where, position = self._where(argument)
        if isinstance(where, str):
            value = tensor if position is None else _with(self.kwargs[where], position, tensor)
            return replace(self, kwargs={**self.kwargs, where: value})
        value = tensor if position is None else _with(self.args[where], position, tensor)
        return replace(self, args=tuple(_with(self.args, where, value)))

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def named(self) -> dict[str, Any]:
        """With the settings that are passed now."""
        names = _parameters(self.function, self.call.op)
        known = {argument.name for argument in schema_of(self.call.op).arguments}
        given = {**dict(zip(names, self.args, strict=False)), **self.kwargs}
        settings = {name: value for name, value in given.items() if name in known and not _holds_tensors(value)}
        return {**super().named(), **settings} if "tensors" not in known else super().named()

    def _where(self, argument: Argument) -> tuple[int | str, int | None]:
        """The position or the keyword of an argument, and the position inside it if it is a list."""
        name, position = argument
        if name == "tensors" and position is not None and isinstance(self.args[1], Tensor):
            return 1 + position, None  # einsum takes its operands one by one
        if getattr(self.function, "__name__", "") == "__rmatmul__":
            return {"self": 1, "other": 0}[name], position
        names = _parameters(self.function, self.call.op)
        if name in names[: len(self.args)]:
            return names.index(name), position
        return name if name in self.kwargs else "input", position  # torch calls `self` of an operator `input`


@cache
def _parameters(function: Any, op: Any) -> tuple[str, ...]:
    """The positional parameters of a function by the operator's names."""
    names = tuple(argument.name for argument in schema_of(op).arguments if not argument.kwarg_only)
    if type(function) is not FunctionType or op.overloadpacket.__name__ == "einsum":
        return names
    return tuple("self" if name == "input" and "self" in names else name for name in inspect.signature(function).parameters)


def _with(items: Sequence[Any], position: int, item: Any) -> list[Any]:
    return [*items[:position], item, *items[position + 1 :]]
