"""The order of the examples in an epoch, and their distribution over batches and processes.

Everything is drawn from (seed, epoch, position) alone, never from the global generators. So a run that was killed resumes bit
for bit, and two processes with batch size b see the same global batches as one with batch size 2b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gator.errors import DataError

Positions = npt.NDArray[np.int64]


def random(seed: int, epoch: int, position: int = -1) -> np.random.Generator:
    """The generator for the order of an epoch (position -1), or for the augmentation of a batch or an example in it."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch, position + 1))))


@dataclass(frozen=True)
class Shuffle:
    """`count` training examples in batches of `batch` for each of `world` processes; an incomplete last batch is dropped."""

    count: int
    batch: int
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.global_batch > self.count:
            processes = f" in each of {self.world} processes" if self.world > 1 else ""
            raise DataError(
                f"a batch of {self.batch:,} examples{processes} is larger than the {self.count:,} training examples; "
                "use a smaller batch"
            )

    @property
    def global_batch(self) -> int:
        """Examples in one batch over all processes."""
        return self.batch * self.world

    @property
    def examples(self) -> int:
        return len(self) * self.global_batch

    @property
    def mine(self) -> slice:
        """The part of a global batch that belongs to this process."""
        return slice(self.rank * self.batch, (self.rank + 1) * self.batch)

    def __len__(self) -> int:
        return self.count // self.global_batch

    def epoch(self, epoch: int) -> Positions:
        """The examples of an epoch, with one row per global batch."""
        drawn = random(self.seed, epoch).permutation(self.count)[: self.examples]
        return drawn.reshape(len(self), self.global_batch)


@dataclass(frozen=True)
class InOrder:
    """`count` test examples, each exactly once: a process takes a contiguous part, in batches of at most `batch`."""

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
    """The batch sizes and the rank of a process, which decide which examples it takes."""

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
    """The examples to train on, and the `held` examples to evaluate on, which are the same for every seed."""
    if not 0 < held < count:
        raise DataError(f"hold_back = {held:,} leaves nothing to train on: there are {count:,} training examples")
    drawn = np.random.Generator(np.random.Philox(0)).permutation(count)
    return np.sort(drawn[held:]), np.sort(drawn[:held])
