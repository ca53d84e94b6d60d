"""PyTorch's own runtimes: eager mode and torch.compile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gator.cost.latency.runtimes.run_setup import Arguments, Run, Setup


class Eager:
    """PyTorch in eager mode."""

    def check(self, setup: Setup) -> None:
        """Every setup is possible."""

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def prepare(self, network: nn.Module, arguments: Arguments, setup: Setup) -> Run:
        return _runner(setup.placed_network(network), arguments, setup)

    def layers(self, network: nn.Module, arguments: Arguments, setup: Setup, rounds: int) -> list[tuple[str, float]]:
        """Layers without child modules; what runs between them comes last."""
        network = setup.placed_network(network)
        spent: dict[str, list[float]] = {}
        started: list[float] = []
        names = {module: name for name, module in network.named_modules() if not any(True for _ in module.children())}

        def before(*_: Any) -> None:
            _wait(setup)
            started.append(time.perf_counter())

        def after(module: nn.Module, *_: Any) -> None:
            _wait(setup)
            spent.setdefault(names[module], []).append(1e3 * (time.perf_counter() - started.pop()))

        for module in names:
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after)
        run, totals = _runner(network, arguments, setup), []
        run()
        spent.clear()
        for _ in range(rounds):
            start = time.perf_counter()
            run()
            totals.append(1e3 * (time.perf_counter() - start))
        # A layer that is called several times per forward pass counts with all its calls.
        found = [(name, statistics.median(times) * len(times) / rounds) for name, times in spent.items()]
        return [*found, ("between layers", max(statistics.median(totals) - sum(ms for _, ms in found), 0.0))]


@dataclass(frozen=True)
class Compiled(Eager):
    """PyTorch through torch.compile, compiled for the exact shapes."""

    backend: str | Callable[..., Any] = "inductor"

    def prepare(self, network: nn.Module, arguments: Arguments, setup: Setup) -> Run:
        compiled = torch.compile(_with_own_code(setup.placed_network(network)), dynamic=False, backend=self.backend)
        run = _runner(compiled, arguments, setup)
        run()
        return run

    def layers(self, network: nn.Module, arguments: Arguments, setup: Setup, rounds: int) -> list[tuple[str, float]]:  # noqa: ARG002
        return []


def _with_own_code(network: nn.Module) -> Callable[..., Any]:
    """The network as a function with a code object of its own.

    torch.compile gives up on a code object that it has compiled eight times (networks of one class share theirs), and
    torch._dynamo.reset() would discard the networks that the user has compiled.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        return network(*args, **kwargs)

    forward.__code__ = forward.__code__.replace()
    return forward


def _runner(network: Any, arguments: Arguments, setup: Setup) -> Run:
    args, kwargs = arguments
    if setup.device == "cpu":
        return lambda: network(*args, **kwargs)

    def run() -> None:
        network(*args, **kwargs)
        _wait(setup)

    return run


def _wait(setup: Setup) -> None:
    if setup.device != "cpu":  # the call returns before the work is done
        torch.accelerator.synchronize()
