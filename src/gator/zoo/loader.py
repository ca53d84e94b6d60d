"""What training needs of a data set: two loaders, and what is known about the examples.

A training batch depends on (seed, epoch, index, rank) alone, and the global random number generators are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from gator.files.preprocessing import Preprocessing

Part = Literal["train", "test"]


class Loader(Protocol):
    """Batches of inputs and labels; the same epoch always gives the same batches."""

    @property
    def examples(self) -> int:
        """The number of examples in one epoch, over all processes."""

    def __len__(self) -> int:
        """The number of batches of this process in one epoch."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from number `start` on."""


@dataclass(frozen=True)
class Data:
    """A data set with its training and test loaders."""

    name: str
    train: Loader
    test: Loader
    classes: int  # 0 if it is not known
    shape: tuple[int, ...]  # of one example
    tested_on: str  # a description of the test examples, for the result
    preprocessing: Preprocessing | None = None  # of the test examples; None if it is not known
    class_names: tuple[str, ...] = ()  # in the order of the labels; empty if they are not known
