"""Which example stands where: the order of an epoch, cut into batches over all processes.

Everything is drawn from (seed, epoch, position) alone and never from the global generators, so that a run that was killed
goes on bit for bit, and two processes with batch b see together what one with batch 2b sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gator.errors import DataError

Positions = npt.NDArray[np.int64]


def random(seed: int, epoch: int, position: int = -1) -> np.random.Generator:
    """The generator of an epoch's order (position -1), or of what happens to a batch or an example of it."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch, position + 1))))


@dataclass(frozen=True)
class Shuffle:
    """`count` training examples in batches of `batch` for each of `world` processes; an incomplete last one is dropped."""

    count: int
    batch: int
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.whole > self.count:
            processes = f" in each of {self.world} processes" if self.world > 1 else ""
            raise DataError(
                f"a batch of {self.batch:,} examples{processes} does not fit the {self.count:,} training examples; "
                "take a smaller batch"
            )

    @property
    def whole(self) -> int:
        """Examples in one batch over all processes."""
        return self.batch * self.world

    @property
    def examples(self) -> int:
        return len(self) * self.whole

    @property
    def mine(self) -> slice:
        """This process's part of a whole batch."""
        return slice(self.rank * self.batch, (self.rank + 1) * self.batch)

    def __len__(self) -> int:
        return self.count // self.whole

    def epoch(self, epoch: int) -> Positions:
        """The examples of each batch of an epoch: one row a batch, over all processes."""
        drawn = random(self.seed, epoch).permutation(self.count)[: self.examples]
        return drawn.reshape(len(self), self.whole)


@dataclass(frozen=True)
class InOrder:
    """`count` test examples, every one exactly once: a process takes one run of them, in batches of at most `batch`."""

    count: int
    batch: int
    rank: int = 0
    world: int = 1

    @property
    def examples(self) -> int:
        return self.count

    @property
    def first(self) -> int:
        return self.count * self.rank // self.world

    @property
    def end(self) -> int:
        return self.count * (self.rank + 1) // self.world

    def __len__(self) -> int:
        return -(-(self.end - self.first) // self.batch)

    def batch_at(self, index: int) -> range:
        """The examples of batch `index` of this process."""
        start = self.first + index * self.batch
        return range(start, min(start + self.batch, self.end))


@dataclass(frozen=True)
class Share:
    """What a process takes of every set: its batches, and its number among all processes."""

    batch: int
    test_batch: int
    seed: int
    rank: int
    world: int

    def shuffle(self, count: int) -> Shuffle:
        return Shuffle(count, self.batch, self.seed, self.rank, self.world)

    def in_order(self, count: int) -> InOrder:
        return InOrder(count, self.test_batch, self.rank, self.world)


def split_off(count: int, held: int) -> tuple[Positions, Positions]:
    """What is left to train on, and the `held` examples to test on: the same ones whatever the seed of a run."""
    if not 0 < held < count:
        raise DataError(f"hold_back = {held:,} does not leave anything to train on: there are {count:,} training examples")
    drawn = np.random.Generator(np.random.Philox(0)).permutation(count)
    return np.sort(drawn[held:]), np.sort(drawn[:held])
