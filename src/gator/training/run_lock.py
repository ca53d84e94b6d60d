"""One run at a time works in a run folder: two that resume the same run would overwrite each other's checkpoints."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from gator.errors import RunError

LOCK = "run.lock"
_PATIENCE = 6.0  # seconds: workers of a killed run may live on for some, and hold its lock
log = logging.getLogger("gator")


class RunLock:
    """The lock of a run folder. The system releases it when the process ends, however it ends."""

    def __init__(self) -> None:
        self._lock: Any = None  # while it is held

    def acquire(self, folder: Path) -> None:
        """Hold the lock of the folder from here on, if it is not held yet. Raises a RunError if another run holds it."""
        from filelock import FileLock, Timeout  # a dependency of torch

        if self._lock is not None:
            return
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            raise RunError(f"a run is already active in {folder}; wait until it is finished, or stop it first") from None
        except (OSError, NotImplementedError) as error:
            log.warning("%s cannot be locked (%s): do not start a second run in it", folder, error)
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
