"""Runtimes by name, behind one protocol: a runtime takes a network and inputs and returns a function that runs them once.

A runtime whose packages are missing names the extra to install before anything is measured.
"""

from __future__ import annotations

from typing import Protocol

from torch import nn

from gator.cost.latency.runtimes.onnx_runtime import OnnxRuntime
from gator.cost.latency.runtimes.openvino import OpenVino
from gator.cost.latency.runtimes.pytorch import Compiled, Eager
from gator.cost.latency.runtimes.run_setup import Arguments, Run, Setup
from gator.errors import GatorError
from gator.suggest import did_you_mean


class Runtime(Protocol):
    """How a network is run."""

    def check(self, setup: Setup) -> None:
        """Raise GatorError if this runtime cannot run under this setup on this machine."""
        ...

    def versions(self) -> dict[str, str]:
        """The versions of the packages that run the network."""
        ...

    def prepare(self, network: nn.Module, arguments: Arguments, setup: Setup) -> Run:
        """A function without arguments that runs the network once in eval mode and waits for the result."""
        ...

    def layers(self, network: nn.Module, arguments: Arguments, setup: Setup, rounds: int) -> list[tuple[str, float]]:
        """Milliseconds of every layer or kernel, in the order they run; empty if this runtime does not report them."""
        ...


RUNTIMES: dict[str, Runtime] = {
    "eager": Eager(),
    "compile": Compiled(),
    "onnxruntime": OnnxRuntime(),
    "openvino": OpenVino(),
}


def runtime_of(setup: Setup) -> Runtime:
    """The runtime of a setup. Raises GatorError if there is none of this name, or if it cannot run under this setup."""
    if setup.runtime not in RUNTIMES:
        hint = did_you_mean(setup.runtime, RUNTIMES, at_most=1)
        raise GatorError(
            f"runtime={setup.runtime!r}; expected {', '.join(map(repr, RUNTIMES))}" + (f"; {hint}" if hint else "")
        )
    found = RUNTIMES[setup.runtime]
    found.check(setup)
    return found
