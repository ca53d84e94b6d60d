"""A runtime with known times, measured by a clock that only it advances: no noise."""

from __future__ import annotations

import torch
from torch import nn

import gator

BLOCK = 8


class Clock:
    """Stands still until a runtime advances it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def switches(self) -> int:
        """Nobody preempts it."""
        return 0


CLOCK = Clock()


class Fake:
    """Works on blocks of eight channels: a convolution takes in-blocks times out-blocks microseconds per pixel, plus 10."""

    version = "1.0"
    reads = BLOCK  # channels it reads at a time
    inside = 1.0  # what a layer takes inside a network, relative to alone
    call_ms = 0.0  # what comes with every call
    drifts = False  # whether its speed changes from session to session
    pace = 1.0  # how slow it is
    narrow = 1.0  # what pruned networks take, relative to the sum of their layers
    full = 64  # what the first convolution of an unpruned network writes

    def __init__(self) -> None:
        self.prepared = 0
        self.breaks_after = 10**9

    def check(self, setup) -> None:
        """Every setup is possible."""

    def versions(self) -> dict[str, str]:
        return {"fake": self.version}

    def ms(self, network: nn.Module, call) -> float:
        spent = []

        def count(module, _, output) -> None:
            if isinstance(module, nn.Conv2d):
                blocks = -(-module.in_channels // self.reads) * -(-module.out_channels // BLOCK)
                spent.append(10 + blocks * output.shape[0] * output.shape[2] * output.shape[3])
            if isinstance(module, nn.Linear):
                spent.append(10 + -(-module.in_features // BLOCK))

        convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
        narrow = len(convolutions) > 1 and convolutions[0].out_channels < self.full
        hooks = [module.register_forward_hook(count) for module in network.modules()]
        network.eval()(*call[0], **call[1])
        for hook in hooks:
            hook.remove()
        return self.call_ms + 1e-3 * sum(spent) * (self.inside if len(spent) > 1 else 1.0) * (self.narrow if narrow else 1.0)

    def prepare(self, network, call, setup):
        self.prepared += 1
        if self.prepared > self.breaks_after:
            raise KeyboardInterrupt
        seconds = 1e-3 * self.ms(network, call)

        def run() -> None:
            CLOCK.now += seconds * self.pace * (1.0 + self.prepared * 7 % 10 / 10 if self.drifts else 1.0)

        return run

    def layers(self, network, call, setup, rounds):
        return [("everything", self.ms(network, call))]


class Small(nn.Module):
    """Two residual blocks of 64 channels with 48 inside, and a head."""

    def __init__(self, wide: int = 64, inner: int = 48) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, wide, 3, padding=1)
        self.first, self.second = (
            nn.Sequential(nn.Conv2d(wide, inner, 3, padding=1), nn.ReLU(), nn.Conv2d(inner, wide, 3, padding=1)) for _ in "ab"
        )
        self.head = nn.Linear(wide, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.first(x))
        x = torch.relu(x + self.second(x))
        return self.head(x.mean((2, 3)))


def small(wide: int = 64, inner: int = 48) -> tuple[nn.Module, torch.Tensor, gator.Hypergraph]:
    torch.manual_seed(0)
    model, x = Small(wide, inner).eval(), torch.zeros(2, 3, 8, 8)
    return model, x, gator.trace(model, x)
