"""Progress of a run on the command line: bars with the remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import typer

from gator.cli.screen import wrapped
from gator.training.watch import Moment, Watch


def watch_for() -> PlainWatch:
    """Bars if the output is a terminal, otherwise lines; only rank 0 prints anything."""
    if os.environ.get("RANK", "0") != "0":
        return PlainWatch(prints=False)
    return BarWatch() if sys.stdout.isatty() else PlainWatch()


class ShownLog(logging.Handler):
    """Shows the library's log messages, such as the progress of a latency table, for the length of a `with` block."""

    def __init__(self, watch: PlainWatch) -> None:
        super().__init__(logging.INFO)
        self._watch, self._log = watch, logging.getLogger("gator")

    def emit(self, record: logging.LogRecord) -> None:
        self._watch.note(record.getMessage())

    def __enter__(self) -> None:
        self._level = self._log.level
        self._log.addHandler(self)
        self._log.setLevel(logging.INFO)

    def __exit__(self, *_: object) -> None:
        self._log.removeHandler(self)
        self._log.setLevel(self._level)


class PlainWatch(Watch):
    """Prints a line per epoch."""

    def __init__(self, *, prints: bool = True) -> None:
        self.prints = prints

    def note(self, text: str) -> None:
        if self.prints:
            typer.echo(text)

    def epoch(self, moment: Moment) -> None:
        self.note(str(moment))


class BarWatch(PlainWatch):
    """Shows a bar per phase with steps and times, and below it loss, cost, channels and accuracy; both fit into 80 columns.

    The lines of epochs stay above it.
    """

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console

        self._console = Console()
        self._progress = _two_lines(self._console)
        self._task: Any = None
        self._phase: tuple[str, int] | None = None
        self._last = 0.0
        self._accuracy: float | None = None

    def note(self, text: str) -> None:
        # Wrapped between words here: Rich and terminals break long paths anywhere.
        self._console.print(wrapped(text), highlight=False, markup=False, soft_wrap=True)

    def busy(self, text: str) -> None:
        self.close()  # the thread that draws the bar would disturb what is timed
        self.note(text)

    def wants_step(self) -> bool:
        return time.monotonic() - self._last > 0.25

    def step(self, moment: Moment) -> None:
        self._last = time.monotonic()
        self._show(moment)

    def epoch(self, moment: Moment) -> None:
        self._accuracy = moment.accuracy
        self._show(moment)
        self.note(str(moment))

    def _show(self, moment: Moment) -> None:
        phase = (moment.phase, moment.round)
        if phase != self._phase:
            self._begin(moment)
            self._phase = phase
        self._progress.update(self._task, completed=moment.step, facts=self._facts(moment))

    def _begin(self, moment: Moment) -> None:
        self._progress.start()
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(moment.title, total=moment.steps, completed=moment.step, facts="")

    def _facts(self, moment: Moment) -> str:
        parts = [f"loss {moment.loss:.3f}"]
        if moment.cost_left is not None:
            goal = "" if moment.target is None else f" → {moment.target:.1%}"
            parts += [f"cost {moment.cost_left:.1%}{goal}", f"channels {moment.living}/{moment.channels}"]
        if self._accuracy is not None:
            parts.append(f"accuracy {self._accuracy:.2f}%")
        return ", ".join(parts)

    def close(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = self._phase = None
        self._progress.stop()


def _two_lines(console: Any) -> Any:
    """Rich's progress with the facts of a task on a line of their own."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class TwoLines(Progress):
        def get_renderables(self) -> Any:
            yield self.make_tasks_table(self.tasks)
            for task in self.tasks:
                yield Text(f"  {task.fields['facts']}", no_wrap=True, overflow="ellipsis")

    return TwoLines(
        TextColumn("[bold]{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=console,
    )  # fmt: skip
