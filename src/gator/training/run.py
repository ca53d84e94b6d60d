"""`run`, `resume`: a recipe from its first step to the table at the end, in a folder that holds everything."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gator.errors import RunError
from gator.rank_zero import on_rank_zero
from gator.training.folder import RunFolder, environment, next_free
from gator.training.processes import Processes
from gator.training.reading import read_recipe
from gator.training.recipe import Recipe
from gator.training.recipe_check import check
from gator.training.report import Result
from gator.training.stages import Run
from gator.training.watch import Watch
from gator.zoo.data import Data


def run(
    recipe: Recipe | str | os.PathLike[str], *, folder: str | os.PathLike[str] | None = None, watch: Watch | None = None
) -> Result:
    """Prune as the recipe says, leaving everything in `folder` (by default a new one under runs/)."""
    recipe = check(recipe) if isinstance(recipe, Recipe) else read_recipe(recipe)
    return _go(recipe, None if folder is None else Path(folder), None, watch or Watch())


def resume(folder: str | os.PathLike[str], *, watch: Watch | None = None) -> Result:
    """Go on with a run that was stopped or killed, from its last checkpoint."""
    found = RunFolder.of_run(Path(folder))
    if found.result.is_file():
        raise RunError(f"the run in {folder} is finished; its table is in {found.path / 'result.txt'}")
    return _go(found.recipe(), found.path, found, watch or Watch())


def run_on(recipe: Recipe, data: Data, folder: Path, watch: Watch) -> Result:
    """The same with data that is there already, and what is wrong said when it comes to it."""
    return _go(check(recipe), folder, None, watch, data)


def _go(recipe: Recipe, path: Path | None, folder: RunFolder | None, watch: Watch, data: Data | None = None) -> Result:
    processes = Processes(recipe.run)
    try:
        work = Run(recipe, processes, watch, resuming=folder is not None, data=data)
        folder = folder or _new_folder(recipe, path, processes)
        with _listening(work):
            return work.go(folder)
    finally:
        watch.close()
        processes.close()


def _new_folder(recipe: Recipe, path: Path | None, processes: Processes) -> RunFolder:
    def made() -> Path:
        where = path or next_free(Path("runs"), recipe.name)
        return RunFolder.new(where, recipe, environment(recipe, str(processes.device), processes.count)).path

    return RunFolder(on_rank_zero(made))


@contextmanager
def _listening(work: Run) -> Iterator[None]:
    """Ctrl-C or SIGTERM asks the run to stop after a checkpoint; a second Ctrl-C stops it at once.

    A second SIGTERM does not: launchers pass on what the whole group of processes has been sent already.
    """

    def ask(number: int, _: Any) -> None:
        if work.asked_to_stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        work.asked_to_stop = True
        work.watch.note("stopping after this step; Ctrl-C once more stops at once")

    try:
        old = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: nobody sends it signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
