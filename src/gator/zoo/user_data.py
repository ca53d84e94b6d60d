"""A user's own data: path/to/file.py:function returns (train, test), two iterables of (input, label) with a length; or
(train, test, about), where a `gator.About` has the preprocessing of the test examples and the names of the classes.

While a user's loader runs (shuffling, augmentation), the global random number generators are seeded with (seed, epoch), and
restored afterwards. So the loader does not disturb the random numbers of the run, and an epoch that is resumed in the middle
gives the batches it would have given.
"""

from __future__ import annotations

import inspect
import random as python_random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gator.errors import DataError
from gator.files.about import About
from gator.zoo.loader import Data
from gator.zoo.order import Share, random
from gator.zoo.user_file import call, function_in


def load(name: str, share: Share, *, folder: str | None) -> Data:
    """Call the function with those of batch, seed, rank, world and folder that are among its parameters."""
    known = {"batch": share.batch, "seed": share.seed, "rank": share.rank, "world": share.world, "folder": folder}
    with LoaderGenerators(share.seed, 0).entered():
        function = function_in(name, DataError)
        given = _named(function, known)
        if share.world > 1 and not {"rank", "world"} <= given.keys():
            raise DataError(
                f"{name} gives each of the {share.world} processes the same batches; add the parameters `rank` and `world` and "
                "divide the examples by them, for example with torch.utils.data.DistributedSampler"
            )
        how = f"It is called with {', '.join(given) or 'no arguments'}; its parameters may be any of {', '.join(known)}."
        made = call(name, function, given, DataError, how)
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3):
        raise DataError(f"{name} returned {_found(made)}; expected (train, test), two loaders, and perhaps a gator.About")
    about = made[2] if len(made) == 3 else About()
    if not isinstance(about, About):
        raise DataError(f"{name} returned {_found(made)}; expected a gator.About as the third")
    train, test = (UserLoader(f"{name}, {part}", each, share) for part, each in zip(("train", "test"), made[:2], strict=True))
    if not len(train):
        raise DataError(f"{name}: the train loader is empty; with drop_last=True the batch may be larger than the data set")
    first, _ = next(test.batches(0), (None, None))
    if first is None:
        raise DataError(f"{name}: the test loader is empty")
    tested_on = f"{test.examples:,} test examples of {Path(name).name}"
    shape = tuple(first.shape[1:])
    return Data(name, train, test, len(about.class_names), shape, tested_on, about.preprocessing, about.class_names)


def _named(function: Any, known: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return known
    return {each.name: known[each.name] for each in parameters if each.name in known}


class LoaderGenerators:
    """States of the global generators of torch (CPU), NumPy and Python for one loader, seeded with (seed, epoch)."""

    def __init__(self, seed: int, epoch: int) -> None:
        drawn = int(random(seed, epoch).integers(2**32))
        outside = _generators()
        torch.default_generator.manual_seed(drawn)
        np.random.seed(drawn)  # noqa: NPY002
        python_random.seed(drawn)
        self._inside = _generators()
        _set_generators(outside)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, the global generators continue from the end of the previous block; afterwards they are restored."""
        outside = _generators()
        _set_generators(self._inside)
        try:
            yield
        finally:
            self._inside = _generators()
            _set_generators(outside)


def _generators() -> tuple[Tensor, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), python_random.getstate()  # noqa: NPY002


def _set_generators(states: tuple[Tensor, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    python_random.setstate(states[2])


@dataclass(frozen=True, eq=False)
class UserLoader:
    """A user's loader, whose epochs are made repeatable."""

    name: str
    source: Any
    share: Share

    def __post_init__(self) -> None:
        try:
            length = len(self.source)
        except TypeError:
            length = -1
        if length < 0 or not hasattr(self.source, "__iter__"):
            found = f"{_found(self.source)} has no length or cannot be iterated"
            raise DataError(f"{self.name}: {found}; expected a DataLoader or a list of batches")

    @property
    def examples(self) -> int:
        """The size of the loader's data set, but no more than its batches hold; without one, estimated from the first batch."""
        size = getattr(self.source, "batch_size", None) or len(next(self.batches(0), (torch.empty(0),))[0])
        held = len(self) * int(size) * self.share.world
        try:
            return min(held, len(self.source.dataset))
        except (AttributeError, TypeError):
            return held

    def __len__(self) -> int:
        return len(self.source)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        generators = LoaderGenerators(self.share.seed, epoch)
        with generators.entered():
            self._begin(epoch)
            iterator = iter(self.source)
        for index in range(len(self)):
            with generators.entered():
                batch = next(iterator, None)
            if batch is None:
                return
            if index >= start:
                yield self._pair(batch)

    def _begin(self, epoch: int) -> None:
        """Call set_epoch of the samplers, and seed the generators that the user gave to the loader."""
        batch_sampler = getattr(self.source, "batch_sampler", None)
        places = (self.source, getattr(self.source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
        for place in places:
            if callable(set_epoch := getattr(place, "set_epoch", None)):
                set_epoch(epoch)
            if isinstance(generator := getattr(place, "generator", None), torch.Generator):
                generator.manual_seed(int(random(self.share.seed, epoch).integers(2**32)))

    def _pair(self, batch: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not all(isinstance(each, Tensor) for each in batch):
            raise DataError(f"{self.name}: a batch is {_found(batch)}; expected (input, label), two tensors")
        return batch[0], batch[1]


def _found(thing: Any) -> str:
    if isinstance(thing, (tuple, list)):
        return f"a {type(thing).__name__} of {', '.join(type(each).__name__ for each in thing[:4]) or 'nothing'}"
    return f"{type(thing).__name__}"
