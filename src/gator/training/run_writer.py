"""`RunWriter`: writes into the run folder, on rank 0, checkpoints now and then; its errors say how to resume."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gator.errors import FileError, RunError
from gator.rank_zero import on_rank_zero
from gator.training.checkpoint import State, checkpoints, drop_latest, write_checkpoint
from gator.training.folder import RunFolder

T = TypeVar("T")


class RunWriter:
    """Writes into one run folder; `every` is the number of seconds between two checkpoints."""

    def __init__(self, folder: RunFolder, every: float) -> None:
        self.folder, self._every = folder, every
        self._last, self._steps = time.monotonic(), 0

    def count_step(self) -> None:
        """A step was taken that no checkpoint has yet."""
        self._steps += 1

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self._last >= self._every

    def write(self, write: Callable[[], T]) -> T:
        """Call `write` on rank 0. Raises RunError, which says how to resume, if that fails."""
        try:
            return on_rank_zero(write)
        except (FileError, OSError) as error:
            raise RunError(
                f"the run folder could not be written: {error}\n"
                f"  {self._last_good()}. Free some disk space, then resume with: gator prune --resume {self.folder.path}"
            ) from error

    def checkpoint(self, number: int, state: State) -> Path:
        """Write a checkpoint; numbers grow as the run goes on."""
        path = self.write(lambda: write_checkpoint(self.folder.checkpoints, number, state))
        self._last, self._steps = time.monotonic(), 0
        return path

    def drop_diverged(self) -> str:
        """Remove a checkpoint that no good step followed: its network has diverged. Returns a sentence about what is left."""
        return on_rank_zero(self._drop_diverged)

    def _drop_diverged(self) -> str:
        if not self._steps:
            drop_latest(self.folder.checkpoints)
        return self._last_good()

    def _last_good(self) -> str:
        found = checkpoints(self.folder.checkpoints)
        return (
            f"The last good checkpoint is {found[-1]}"
            if found
            else "There is no good checkpoint yet: a resumed run begins anew"
        )
