"""Global state that recording changes: the garbage collector, the fused attention of torch, whether torch says that it
exports, and autograd functions.

The first thread that records makes the change, the last one undoes it. If every thread saved and restored the state by itself,
it could restore what another thread had set.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gator.private_torch import checkpoints_run_directly, say_exporting


class GlobalChange:
    """A change that is active while any thread is inside `active()`. `make` makes the change and returns how to undo it."""

    def __init__(self, make: Callable[[], Callable[[], object]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._active = 0
        self._undo: Callable[[], object] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._lock:
            if not self._active:
                self._undo = self._make()
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                self._active -= 1
                if not self._active and self._undo is not None:
                    self._undo()


def _without_collector() -> Callable[[], object]:
    """Tracing creates many small objects, none of them garbage, and each collection visits every object of torch. That would
    be a third of the time of a trace."""
    was_enabled = gc.isenabled()
    gc.disable()
    return gc.enable if was_enabled else lambda: None


def _without_fastpath() -> Callable[[], object]:
    """With the fast path, attention in eval mode runs as one fused operator, which has no rule."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    return lambda: torch.backends.mha.set_fastpath_enabled(enabled)


class _Recording(threading.local):
    """The nesting depth of custom autograd functions in this thread; None while the thread does not record."""

    depth: int | None = None


_recording = _Recording()


def _autograd_functions_counted() -> Callable[[], object]:
    """Count custom autograd functions in threads that record; in other threads they run unchanged."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if _recording.depth is None:
            return original.__func__(cls, *args, **kwargs)
        _recording.depth += 1
        try:
            # Without gradients nothing is saved for the backward pass, which is not possible for inference tensors.
            with torch.no_grad():
                return original.__func__(cls, *args, **kwargs)
        finally:
            _recording.depth -= 1

    def undo() -> None:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    return undo


def _without_checkpoints() -> Callable[[], object]:
    """Gradient checkpointing saves its inputs for backward, which is not possible for inference tensors."""
    return checkpoints_run_directly(lambda: _recording.depth is not None)


_collector, _fastpath, _exporting, _functions, _checkpoints = (
    GlobalChange(make)
    for make in (_without_collector, _without_fastpath, say_exporting, _autograd_functions_counted, _without_checkpoints)
)


def collector_paused() -> Any:
    """Disable garbage collection until the last such block of all threads ends; then restore the earlier state."""
    return _collector.active()


def fastpath_disabled() -> Any:
    """Disable the fused attention of torch until the last such block of all threads has ended."""
    return _fastpath.active()


def exporting() -> Any:
    """Tell networks that ask torch that they are being exported: they then look at shapes, and not at the values of a mask."""
    return _exporting.active()


@contextmanager
def autograd_functions_counted() -> Iterator[None]:
    """Make `inside_autograd_function` work in this thread inside the block, where checkpoints run directly."""
    before = _recording.depth
    with _functions.active(), _checkpoints.active():
        _recording.depth = 0
        try:
            yield
        finally:
            _recording.depth = before


def inside_autograd_function() -> bool:
    """Whether this thread records the forward of a custom autograd function: it runs under no_grad, but has a gradient."""
    return bool(_recording.depth)
