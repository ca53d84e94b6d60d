"""Whether the machine had anything else to do while something was timed.

Known on Linux; elsewhere nobody is assumed to disturb.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_STAT = Path("/proc/stat")
MOST = 0.04  # of all processors, taken by others: more than that is seen in the times


def _busy_seconds() -> float | None:
    """Processor time spent by anybody since the machine was started, time stolen by its host included."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, _STAT.read_text().splitlines()[0].split()[1:9])
    except (OSError, ValueError, IndexError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def undisturbed(measure: Callable[[], T], *, tries: int = 3) -> T:
    """What `measure` finds while nobody else works; after so many tries, what it found when others worked least."""
    best: tuple[float, T] | None = None
    for _ in range(tries):
        before, own, start = _busy_seconds(), time.process_time(), time.perf_counter()
        found = measure()
        after, spent = _busy_seconds(), time.perf_counter() - start
        if before is None or after is None:
            return found
        others = (after - before - (time.process_time() - own)) / max(spent, 0.05)
        if best is None or others < best[0]:
            best = (others, found)
        if others <= MOST * (os.cpu_count() or 1):
            break
    assert best is not None
    return best[1]
