"""What the training room sees of a data set: two loaders, and what is known about the examples.

A training batch is a function of (seed, epoch, index, rank) alone, and the global generators are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Loader(Protocol):
    """Batches of inputs and labels, the same for the same epoch however often they are asked for."""

    @property
    def examples(self) -> int:
        """In one epoch, over all processes."""

    def __len__(self) -> int:
        """Batches in one epoch of this process."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number `start` on."""


@dataclass(frozen=True)
class Data:
    """A data set: what is trained on, what is tested on."""

    name: str
    train: Loader
    test: Loader
    classes: int  # 0 where it is not known
    shape: tuple[int, ...]  # of one example
    tested_on: str
