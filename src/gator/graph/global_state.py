"""Changes to the whole process that recording needs: made by the first thread that records, undone by the last.

Each block that saved and restored such a setting by itself would restore what another thread had set.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class ProcessWide:
    """A change that is in force while any thread is inside `in_force()`. `make` returns how to undo it."""

    def __init__(self, make: Callable[[], Callable[[], object]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._blocks = 0
        self._undo: Callable[[], object] | None = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with self._lock:
            if not self._blocks:
                self._undo = self._make()
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks and self._undo is not None:
                    self._undo()


def _without_collector() -> Callable[[], object]:
    """Tracing makes many small objects, none of them garbage, and each collection would visit every object of torch: a third
    of the time that tracing takes."""
    was_enabled = gc.isenabled()
    gc.disable()
    return gc.enable if was_enabled else lambda: None


def _without_fastpath() -> Callable[[], object]:
    """Attention in eval mode would run as one fused operator, which has no rule."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    return lambda: torch.backends.mha.set_fastpath_enabled(enabled)


class _Recording(threading.local):
    """How many custom autograd functions run inside each other in this thread; None while it records nothing."""

    depth: int | None = None


_recording = _Recording()


def _functions_counted() -> Callable[[], object]:
    """Custom autograd functions of threads that record are counted; those of other threads run as they are."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if _recording.depth is None:
            return original.__func__(cls, *args, **kwargs)
        _recording.depth += 1
        try:
            # Without gradients it saves nothing for a backward pass, which tensors made in inference mode refuse.
            with torch.no_grad():
                return original.__func__(cls, *args, **kwargs)
        finally:
            _recording.depth -= 1

    def undo() -> None:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    return undo


_collector, _fastpath, _functions = (ProcessWide(make) for make in (_without_collector, _without_fastpath, _functions_counted))


def collector_paused() -> Any:
    """Disable garbage collection until the last such block of all threads has ended; then it is as it was before the first."""
    return _collector.in_force()


def fastpath_disabled() -> Any:
    """Disable the fused attention of torch until the last such block of all threads has ended."""
    return _fastpath.in_force()


@contextmanager
def functions_watched() -> Iterator[None]:
    """Let `inside_function` know, in this thread, when a custom autograd function is running."""
    before = _recording.depth
    with _functions.in_force():
        _recording.depth = 0
        try:
            yield
        finally:
            _recording.depth = before


def inside_function() -> bool:
    """Whether this thread records the forward of a custom autograd function, which runs without gradients but has some."""
    return bool(_recording.depth)
