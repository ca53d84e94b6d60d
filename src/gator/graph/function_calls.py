"""Calls of torch functions as the user's code makes them: one level above the operators that are recorded.

A mask or a gate changes what a function such as `layer_norm` or `matmul` reads while the user's own forward runs. Functions
are intercepted by a mode of torch, which sees `functional.multi_head_attention_forward` as one call; what runs inside such a
function of Python is seen because its body is run with the mode on.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import FrameType, FunctionType
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from gator.graph.global_state import inside_autograd_function
from gator.graph.program import Place
from gator.private_torch import CALL_IMPL, OpOverload

# Functions of the same name as the one operator they run, of which an argument may be read along its channels.
READERS = frozenset((
    "linear", "bilinear", "conv1d", "conv2d", "conv3d", "convolution",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "einsum", "scaled_dot_product_attention",
    "layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "sum", "mean", "amax", "amin", "max", "min", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "logsumexp", "any",
    "count_nonzero", "softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum",
    "dropout", "dropout_", "feature_dropout", "feature_dropout_", "alpha_dropout",
))  # fmt: skip
_OTHER_NAMES = {"__matmul__": "matmul", "__rmatmul__": "matmul"}


def name_of(function: Any) -> str:
    """The name of a torch function: that of its operator, for functions that run one."""
    if isinstance(function, OpOverload):
        return str(function.overloadpacket.__name__)
    name = str(getattr(function, "__name__", ""))
    return _OTHER_NAMES.get(name, name)


@cache
def _body(function: FunctionType) -> Callable[..., Any] | None:
    """The function without the question whether a mode is on; None if it does not ask."""
    checks = [name for name in function.__code__.co_names if name.startswith("has_torch_function")]
    if not checks:
        return None
    names = {**function.__globals__, **dict.fromkeys(checks, lambda *_: False)}
    body = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


class FunctionMode(TorchFunctionMode):
    """Passes every call of a function in `READERS` to `read`."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: list[Any] = []  # functions of Python whose bodies run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if name in READERS:
            return self.read(name, func, args, kwargs)
        # A method of Tensor written in Python runs the one of the same name in C, which torch passes on as the former.
        body = _body(func) if type(func) is FunctionType and func not in self._opened[-1:] else None
        if body is None:
            return func(*args, **kwargs)
        self._opened.append(func)
        try:
            with self:
                return body(*args, **kwargs)
        finally:
            self._opened.pop()

    @abstractmethod
    def read(self, name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Called instead of `func`, with the mode off."""


def innermost_module() -> nn.Module | None:
    """The module whose forward the calling code belongs to."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CALL_IMPL:
            found = frame.f_locals.get("self")
            return found if isinstance(found, nn.Module) else None
        frame = frame.f_back
    return None


@dataclass
class _Running:
    """A function that runs, where, and the calls that were recorded while it ran."""

    name: str
    place: Place
    calls: list[int] = field(default_factory=list)


class FunctionLog(FunctionMode):
    """Finds the place of every call of a function while a network is recorded. `found` maps recorded calls to places."""

    def __init__(self, modules: Mapping[int, str]) -> None:
        super().__init__()
        self._modules = modules
        self._visits: dict[str, list[FrameType]] = {}  # kept, so that no later frame gets the same identity
        self._counts: dict[tuple[str, int, str], int] = {}
        self._running: list[_Running] = []
        self.found: dict[int, Place] = {}

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if not self._opened and not self._running:
            self._visits.clear()  # frames refer to the model and to everything that was recorded

    def read(self, name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        running = _Running(name, self._place(name))
        self._running.append(running)
        try:
            return func(*args, **kwargs)
        finally:
            self._running.pop()
            if len(running.calls) == 1 and "out" not in kwargs and not inside_autograd_function():
                self.found[running.calls[0]] = running.place

    def ran(self, index: int, operator: str) -> None:
        """Note that a call was recorded; a function that runs another operator than its own has no place."""
        if self._running:
            self._running[-1].calls.extend([index] if operator == self._running[-1].name else [index, index])

    def _place(self, name: str) -> Place:
        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            if frame.f_code is CALL_IMPL and id(frame.f_locals.get("self")) in self._modules:
                break
            frame = frame.f_back
        module = "" if frame is None else self._modules[id(frame.f_locals["self"])]
        visits = self._visits.setdefault(module, [])
        visit = next((i for i, seen in enumerate(visits) if seen is frame), len(visits))
        if visit == len(visits) and frame is not None:
            visits.append(frame)
        key = (module, visit, name)
        self._counts[key] = self._counts.get(key, -1) + 1
        return Place(module, visit, name, self._counts[key])
