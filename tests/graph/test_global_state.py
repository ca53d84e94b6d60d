"""Global state that tracing changes is restored, also when several threads trace."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

import gator
from gator.graph.global_state import collector_paused


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def enabled(request) -> bool:
    """Whether the user has the collector enabled."""
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_the_collector_is_restored(enabled) -> None:
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() == enabled
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled() == enabled


def test_two_threads_that_trace_at_the_same_time(enabled) -> None:
    """The second begins before the first ends, and ends after it."""
    inside, leave = threading.Event(), threading.Event()
    states = []

    def second() -> None:
        with collector_paused():
            inside.set()
            leave.wait(10)
            states.append(gc.isenabled())

    thread = threading.Thread(target=second)
    with collector_paused():
        thread.start()
        assert inside.wait(10)
    leave.set()
    thread.join()
    assert states == [False]
    assert gc.isenabled() == enabled


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


class Waiting(nn.Module):
    """Waits in the middle of being recorded until `leave` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)
        self.inside, self.leave = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Doubled.apply(self.one(x))
        self.inside.set()
        assert self.leave.wait(10)
        return self.two(x)


def test_other_threads_are_not_affected_while_one_records() -> None:
    """Their autograd functions have gradients, and global state is restored."""
    apply, fastpath = torch.autograd.Function.__dict__["apply"], torch.backends.mha.get_fastpath_enabled()
    first, second = Waiting(), Waiting()
    graphs = []
    threads = [
        threading.Thread(target=lambda net=net: graphs.append(gator.trace(net, torch.zeros(2, 3)))) for net in (first, second)
    ]
    for thread, net in zip(threads, (first, second), strict=True):
        thread.start()
        assert net.inside.wait(10)
    x = torch.ones(3, requires_grad=True)
    Doubled.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    for thread, net in zip(threads, (first, second), strict=True):  # the first to begin ends first
        net.leave.set()
        thread.join()
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert torch.backends.mha.get_fastpath_enabled() == fastpath
    assert [[edge.name for edge in graph.edges] for graph in graphs] == [["one"], ["one"]]
    assert not any(call.frozen for graph in graphs for call in graph.train.program.calls)
