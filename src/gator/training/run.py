"""`run` and `resume`: carry out a recipe, with everything that belongs to the run in one folder."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gator.errors import RunError
from gator.rank_zero import on_rank_zero
from gator.training.by_criterion import Choose
from gator.training.changes import changed_recipe
from gator.training.checkpoint import checkpoints
from gator.training.folder import RunFolder, environment, next_free
from gator.training.processes import Processes
from gator.training.recipe import Recipe
from gator.training.recipe_check import check
from gator.training.recipe_file import read_recipe
from gator.training.report import Result
from gator.training.run_lock import RunLock
from gator.training.stages import Interrupted, Run
from gator.training.watch import Watch
from gator.zoo.data import Data


def run(
    recipe: Recipe | str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
    choose: Choose | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> Result:
    """Train, prune and fine-tune a network as a recipe says.

    Args:
        recipe: a `gator.Recipe`, the path of a TOML file, or the name of a recipe that comes with Gator.
        folder: where to write networks, checkpoints, metrics and the result; it must not exist yet, or be empty. By default
            runs/NAME, or runs/NAME-2 and so on if that exists.
        watch: an object whose methods are called after every epoch and at other events (`gator.training.watch.Watch`); by
            default progress goes to the logger "gator".
        choose: with `prune.criterion = "function"`, a function `f(model, graph, cost)` that returns the channels to keep, as
            `gator.cut` takes them; `cost` is what the network may cost, in the unit of the cost. For comparing a method of your
            own.
        overwrite: replace the run that is in the folder, by default the one in runs/NAME, once the settings have been checked.
        resume: continue the run that `folder` has already, if it has one, from its last checkpoint; the result of a finished
            run is returned as it is. So a script can be started again after every failure, for example by
            `torchrun --max-restarts`.

    Returns:
        A `gator.Result`.

    Raises:
        RecipeError: or DataError or ModelNameError, before any training, if a setting is wrong.
        RunError: if another run is active in the folder, or if the run has to stop: the loss is not finite, the disk is full,
            or Ctrl-C or SIGTERM was received. The message names the last checkpoint; `gator.resume` continues from there.

    Examples:
        >>> recipe = gator.read_recipe("digits", ["train.epochs=1", "prune.epochs=1", "finetune.epochs=1", "latency.batch=1"])
        >>> result = gator.run(recipe, folder="runs/first")
        >>> result.rounds[0].figures.macs <= 0.5 * result.before.macs
        True
    """
    recipe = check(recipe) if isinstance(recipe, Recipe) else read_recipe(recipe)
    if resume and folder is None:
        raise RunError("resume=True needs folder=, the run folder in which to look for checkpoints")
    path = None if folder is None else Path(folder)
    return _go(recipe, path, None, watch or Watch(), choose=choose, overwrite=overwrite, look_for_run=resume)


def resume(
    folder: str | os.PathLike[str],
    *,
    changes: Iterable[str] = (),
    watch: Watch | None = None,
    choose: Choose | None = None,
) -> Result:
    """Continue a run that was stopped or killed, from its last checkpoint.

    On one machine, with the same versions and number of processes and threads, the result is bit for bit that of a run that was
    never stopped.

    Args:
        folder: the run folder; the recipe is read from there.
        changes: keys to change from here on, as for `gator.read_recipe`, for example "train.lr=0.01" after a non-finite loss.
            They may be those of learning rates and regularization, and of [run] without its precision.
        watch, choose: as for `gator.run`.

    Returns:
        A `gator.Result`.

    Raises:
        RunError: as for `gator.run`, and if the folder is not a run folder, if the run is finished, or if it was started with
            another recipe or number of processes.

    Examples:
        >>> recipe = gator.read_recipe("digits", ["train.epochs=0", "prune.epochs=1", "finetune.epochs=0", "latency.batch=1"])
        >>> folder = gator.run(recipe).folder
        >>> gator.resume(folder)
        Traceback (most recent call last):
        gator.errors.RunError: the run in ... is finished; its table is in ...result.txt
    """
    found = RunFolder.of_run(Path(folder))
    recipe = changed_recipe(found.recipe_file, tuple(changes))
    return _go(recipe, found.path, found, watch or Watch(), choose=choose)


def run_on(recipe: Recipe, data: Data, folder: Path, watch: Watch) -> Result:
    """As `run`, but on the given data, and without trying the pruner before training."""
    return _go(check(recipe), folder, None, watch, data)


def _go(
    recipe: Recipe,
    path: Path | None,
    folder: RunFolder | None,
    watch: Watch,
    data: Data | None = None,
    choose: Choose | None = None,
    overwrite: bool = False,
    look_for_run: bool = False,
) -> Result:
    processes, lock = Processes(recipe.run), RunLock()
    try:
        used = Path("runs") / recipe.name if path is None and overwrite else path
        if used is not None and RunFolder(used).recipe_file.is_file():
            on_rank_zero(lambda: lock.acquire(used))
        if folder is not None and folder.result.is_file():
            raise RunError(f"the run in {folder.path} is finished; its table is in {folder.path / 'result.txt'}")
        if look_for_run:
            assert path is not None
            folder, result = on_rank_zero(lambda: _begun(path, recipe))
            if result is not None:
                watch.note(f"the run in {path} is finished")
                return result
            if folder is None:
                watch.note("no checkpoint yet: starting from the beginning")
        work = Run(recipe, processes, watch, resuming=folder is not None, data=data, choose=choose)
        folder = folder or _new_folder(recipe, path, processes, overwrite)
        _check_shared(folder, processes)
        where = folder.path
        on_rank_zero(lambda: lock.acquire(where))
        with _signals_stop(work):
            return work.go(folder)
    except KeyboardInterrupt as interrupt:
        raise _stopped_at_once(interrupt, folder) from interrupt
    finally:
        lock.release()
        watch.close()
        processes.close()


def _stopped_at_once(interrupt: KeyboardInterrupt, folder: RunFolder | None) -> Interrupted:
    """The error after Ctrl-C before the first step or a second Ctrl-C, when no checkpoint is written."""
    text = str(interrupt) or "stopped at once"
    if folder is None:
        return Interrupted(f"{text}; the run had not begun, and nothing was written")
    last = checkpoints(folder.checkpoints)
    kept = f"the last checkpoint is {last[-1]}" if last else "there is no checkpoint yet"
    return Interrupted(f"{text}; {kept}. Resume with: gator prune --resume {folder.path}")


def _begun(path: Path, recipe: Recipe) -> tuple[RunFolder | None, Result | None]:
    """The run that was started in this folder before, and its result if it is finished."""
    folder = RunFolder.begun(path, recipe)
    if folder is None or not folder.result.is_file():
        return folder, None
    return folder, Result.from_json({**json.loads(folder.result.read_text()), "folder": str(path)})


def _check_shared(folder: RunFolder, processes: Processes) -> None:
    """Raise unless every process sees the run folder: networks and checkpoints are written by rank 0 and read by all."""
    seen = processes.gather((folder.recipe_file.is_file(), socket.gethostname(), str(folder.path.absolute())))
    missing = [f"rank {rank} on {host}" for rank, (found, host, _) in enumerate(seen) if not found]
    if missing:
        raise RunError(
            f"the run folder of rank 0, {seen[0][2]}, is not seen by {', '.join(missing)}\n"
            "  Pass --out with a folder on a file system that all nodes share."
        )


def _new_folder(recipe: Recipe, path: Path | None, processes: Processes, overwrite: bool) -> RunFolder:
    def made() -> Path:
        where = path or (Path("runs") / recipe.name if overwrite else next_free(Path("runs"), recipe.name))
        found = environment(recipe, str(processes.device), processes.count)
        return RunFolder.new(where, recipe, found, overwrite=overwrite).path

    return RunFolder(on_rank_zero(made))


@contextmanager
def _signals_stop(work: Run) -> Iterator[None]:
    """Ctrl-C or SIGTERM stops the run after the current step, with a checkpoint; a second Ctrl-C stops it at once.

    A second SIGTERM does not: launchers forward the signal to processes that have received it already.
    """

    def ask(number: int, _: Any) -> None:
        if work.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        work.stop_requested = True
        work.watch.note("stopping after this step; press Ctrl-C again to stop at once")

    try:
        old = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread receives signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
