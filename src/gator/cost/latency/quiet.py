"""Measurements that are repeated if other processes were busy meanwhile.

That is known on Linux; on other systems the first measurement counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_STAT = Path("/proc/stat")
_BUSY = 0.04  # of all processors, used by other processes: more than that shows in the times


def _busy_seconds() -> float | None:
    """Processor time that all processes have used since the machine was started, with the time that its host took from it."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, _STAT.read_text().splitlines()[0].split()[1:9])
    except (OSError, ValueError, IndexError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def undisturbed(measure: Callable[[], T], *, tries: int = 3) -> T:
    """The first result of `measure` while other processes were idle; after so many tries, that with the least activity."""
    best: tuple[float, T] | None = None
    for _ in range(tries):
        before, own, start = _busy_seconds(), time.process_time(), time.perf_counter()
        result = measure()
        after, seconds = _busy_seconds(), time.perf_counter() - start
        if before is None or after is None:
            return result
        others = (after - before - (time.process_time() - own)) / max(seconds, 0.05)
        if best is None or others < best[0]:
            best = (others, result)
        if others <= _BUSY * (os.cpu_count() or 1):
            break
    assert best is not None
    return best[1]
