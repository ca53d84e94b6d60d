"""A run folder belongs to one process at a time: two that resume the same run would overwrite each other's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gator.errors import RunError

LOCK = "run.lock"


class RunLock:
    """The lock of a run folder. The system releases it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: Any = None

    def acquire(self) -> None:
        """Raise a RunError if another process has it. A file system without locks is used without them."""
        from filelock import FileLock, Timeout  # comes with torch

        lock = FileLock(self._folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"another process is working in {self._folder}; wait until it is finished, or stop it first"
            ) from None
        except (OSError, NotImplementedError):
            return
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def check(self) -> None:
        """Raise a RunError if another process has it."""
        if (self._folder / LOCK).is_file():
            self.acquire()
            self.release()
