"""Memory that stays with the process while something is timed.

The C library gives memory back as soon as enough of it is free at the end of the heap, and fetches it again page by page. How
often that happens depends on whatever else the process has in memory: with several networks side by side PyTorch was
measured to take up to twice as long as alone. So nothing is given back meanwhile. Only glibc has these settings.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_TRIM, _MMAP = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
_MOST = 2**25  # bytes: what older versions take at most
_KEPT = (2**31 - 1, 2**30)
_USUAL = (2 * _MOST, _MOST)  # what glibc itself comes to in a process that frees large tensors
_open = [0]


@cache
def _mallopt() -> Any:
    if platform.libc_ver()[0] != "glibc":
        return None
    return getattr(ctypes.CDLL(None), "mallopt", None)


def _set(trim: int, mmap: int) -> None:
    change = _mallopt()
    if change is not None:
        change(_TRIM, trim)
        if not change(_MMAP, mmap):
            change(_MMAP, _MOST)


@contextmanager
def pages_kept() -> Iterator[None]:
    """No memory is given back for as long as the outermost of these blocks lasts."""
    if not _open[0]:
        _set(*_KEPT)
    _open[0] += 1
    try:
        yield
    finally:
        _open[0] -= 1
        if not _open[0]:
            _set(*_USUAL)
