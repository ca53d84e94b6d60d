"""Memory that stays with the process while something is timed, without changing any setting of the allocator.

glibc returns free memory at the end of the heap to the operating system and then fetches it again page by page. How often
depends on what else the process holds: with several networks in one process PyTorch was measured to take twice as long as
alone. glibc cannot tell which thresholds are set, so changing them could not be undone. Instead a small block is held above a
large free region: memory below a block in use is never returned. When the block is freed, everything is as before.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_LARGEST = (32 << 20) - (64 << 10)  # bytes; blocks above 32 MB are always mapped on their own (mallopt(3), M_MMAP_THRESHOLD)
_BLOCKS, _BLOCK = 16, 16 << 20  # the free region: 256 MB of address space, of which only what is used takes memory
_PIN = 4 << 20  # too large to be placed in a gap below the region


@cache
def _glibc() -> ctypes.CDLL | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    return library


@contextmanager
def heap_kept() -> Iterator[None]:
    """Keep freed memory in the process until the block ends. Does nothing with other C libraries than glibc."""
    library = _glibc()
    if library is None:
        yield
        return
    # Freeing one large block makes glibc place blocks up to that size in the heap from now on, as it does by itself in every
    # process that frees large tensors; where the user has set a threshold, it does not.
    library.free(library.malloc(_LARGEST))
    region = [library.malloc(_BLOCK) for _ in range(_BLOCKS)]
    pin = library.malloc(_PIN)
    for block in region:
        library.free(block)
    try:
        yield
    finally:
        library.free(pin)
