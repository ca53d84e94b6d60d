"""The garbage collector is paused while a network is traced, whichever threads trace, and comes back as it was."""

from __future__ import annotations

import gc
import threading

import pytest

from gator.graph.record import collector_paused


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def enabled(request) -> bool:
    """Whether the user has the collector enabled."""
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_the_collector_comes_back_as_it_was(enabled) -> None:
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
