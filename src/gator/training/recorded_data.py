"""The data that a network is evaluated on: as its recipe says, or as the caller says instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gator.errors import DataError
from gator.training.recipe import DataSettings
from gator.zoo.data import Data, load_data
from gator.zoo.user_file import is_file


def data_settings(recorded: DataSettings | None, given: str, folder: str) -> DataSettings:
    """The settings to load data with.

    recorded: those of the recipe; None if the network has none.
    given: the name of a data set, or a folder: of the recorded data set, or of images (with train and val) if none is recorded.
    folder: where a data set that is given by name is.
    """
    if given and Path(given).is_dir() and not is_file(given):
        images = (Path(given) / "val").is_dir()
        if recorded is None and not images:
            raise DataError(f"{given} has no folder val; name the data set: --data cifar10 --folder {given}")
        base = recorded or DataSettings(name="imagefolder", batch=1)
        return replace(base, folder=given)
    if given:
        base = recorded if recorded is not None and recorded.name == given else DataSettings(name=given, batch=1)
        return replace(base, folder=folder or base.folder)
    if recorded is None:
        raise DataError("no data set is recorded for this network; name one: --data cifar10 --folder data")
    return replace(recorded, folder=folder or recorded.folder)


def recorded_data(settings: DataSettings) -> Data:
    """Load the data; nothing is downloaded."""
    return load_data(
        settings.name, folder=settings.folder or None, batch=1, test_batch=settings.test_batch, augment=False,
        hold_back=settings.hold_back, workers=settings.workers, image_size=settings.image_size, verify=settings.verify,
    )  # fmt: skip
