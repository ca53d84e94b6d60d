"""Runtimes behind one protocol: what takes a network and inputs and gives a function that runs them once.

One table by name. A runtime whose packages are missing says which extra to install, before anything is measured.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from gator.cost.latency.eager import Compiled, Eager
from gator.cost.latency.onnx_runtime import OnnxRuntime
from gator.cost.latency.openvino import OpenVino
from gator.cost.latency.setup import Call, Setup
from gator.errors import GatorError


class Runtime(Protocol):
    """How a network is run. `layers`, where a runtime can tell, is the time of its parts."""

    def check(self, setup: Setup) -> None:
        """Raise if this runtime cannot do what is asked for here."""
        ...

    def versions(self) -> dict[str, str]:
        """Of the packages that decide how fast a network is."""
        ...

    def prepare(self, network: nn.Module, call: Call, setup: Setup) -> Callable[[], Any]:
        """The network in eval mode as a function without arguments that runs it once and waits for the result."""
        ...

    def layers(self, network: nn.Module, call: Call, setup: Setup, rounds: int) -> list[tuple[str, float]]:
        """Milliseconds of every layer or kernel, in the order they run; empty if this runtime cannot tell."""
        ...


RUNTIMES: dict[str, Runtime] = {
    "eager": Eager(),
    "compile": Compiled(),
    "onnxruntime": OnnxRuntime(),
    "openvino": OpenVino(),
}


def runtime_of(setup: Setup) -> Runtime:
    """The runtime a setup names, checked."""
    if setup.runtime not in RUNTIMES:
        close = difflib.get_close_matches(setup.runtime, RUNTIMES, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise GatorError(f"runtime={setup.runtime!r}; expected {', '.join(map(repr, RUNTIMES))}{hint}")
    found = RUNTIMES[setup.runtime]
    found.check(setup)
    return found
