"""Progress of a run as it is reported to the caller. `Watch` writes to the log; the command line shows more."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any

_log = logging.getLogger("gator")


@dataclass(frozen=True)
class Moment:
    """The figures after a step; after an epoch with an accuracy."""

    phase: str  # train, prune, finetune
    round: int
    epoch: int
    epochs: int
    step: int  # of this phase
    steps: int
    loss: float
    lr: float
    seconds: float  # of this phase
    accuracy: float | None = None  # while gates are on: of the network as it would be cut now, with new batch-norm statistics
    test_loss: float | None = None
    cost_left: float | None = None  # as a share of the dense network's cost
    target: float | None = None  # as a share of it, too
    alpha: float | None = None
    living: int | None = None
    channels: int | None = None
    widths: tuple[int, ...] | None = None  # after an epoch with gates: living channels of every edge of the dense network

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    @property
    def title(self) -> str:
        return self.phase if self.phase == "train" else f"{self.phase} {self.round + 1}"

    def __str__(self) -> str:
        """A line of at most 80 columns, so that it is not wrapped on a terminal."""
        counted = f"{self.epoch:>{len(str(self.epochs))}}/{self.epochs}"
        text = f"{self.title:<11} {counted}  loss {self.loss:.3f}  lr {self.lr:.2g}"
        if self.cost_left is not None:
            text += f"  cost {self.cost_left:.1%}"
        if self.accuracy is not None:
            text += f"  accuracy {self.accuracy:.2f}%"
        return f"{text}  {self.seconds:.0f} s"


class Watch:
    """Receives the progress of a run; subclass it to show progress elsewhere."""

    def note(self, text: str) -> None:
        """Called with one line about something that happened."""
        _log.info(text)

    def busy(self, text: str) -> None:
        """Called with one line about something that begins now and takes a while, without steps."""
        self.note(text)

    def wants_step(self) -> bool:
        """Whether `step` shall be called now; asked after every step, since collecting the figures takes time."""
        return False

    def step(self, moment: Moment) -> None:
        """Called after a step, if `wants_step`."""

    def epoch(self, moment: Moment) -> None:
        """Called after every epoch."""
        _log.info(str(moment))

    def close(self) -> None:
        """Called when the run has finished or failed."""
