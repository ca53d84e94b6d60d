"""How an image becomes the input of a network. Training, evaluation and `gator predict` all go through this one description,
which is kept in the network file: a network without it gives wrong answers, not errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gator.errors import DataError, MissingExtraError
from gator.extras import optional_import
from gator.graph.json_fields import counts, field, floats

Colors = Literal["RGB", "BGR", "L"]


@dataclass(frozen=True)
class Preprocessing:
    """From an image to an input: resize, crop the center, divide by `pixel_max`, subtract `mean`, divide by `std`.

    >>> gator.Preprocessing(crop=(224, 224), resize=256).values(torch.full((1, 3, 1, 1), 255.0))[0, 0]
    tensor([[2.2489]])
    """

    crop: tuple[int, int]  # height and width of the input
    resize: int  # the shorter side of the image becomes this long (bilinear, antialiased); 0: the image is resized to `crop`
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # one value per channel, in the order of `colors`
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    pixel_max: int = 255  # pixels from 0 to this become values from 0 to 1, before mean and std
    colors: Colors = "RGB"  # the order of the channels; "L" is one channel of grey

    def __post_init__(self) -> None:
        channels = len(self.colors)
        if self.colors not in ("RGB", "BGR", "L"):
            raise DataError(f"colors = {self.colors!r}; expected 'RGB', 'BGR' or 'L'")
        if len(self.mean) != channels or len(self.std) != channels:
            raise DataError(f"mean = {self.mean} and std = {self.std}; expected {channels} values each, one per channel")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise DataError(f"mean = {self.mean}, std = {self.std}; expected finite numbers, and every std above 0")
        if len(self.crop) != 2 or min(self.crop) < 1 or self.resize < 0 or self.pixel_max < 1:
            raise DataError(
                f"crop = {self.crop}, resize = {self.resize}, pixel_max = {self.pixel_max}; expected positive sizes"
            )
        if self.resize and self.resize < max(self.crop):
            raise DataError(f"resize = {self.resize} is smaller than crop = {self.crop}; the shorter side must cover the crop")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one input."""
        return (len(self.colors), *self.crop)

    def values(self, pixels: Tensor) -> Tensor:
        """Inputs of the network from pixels of shape (n, channels, height, width), which are already cropped."""
        mean, std = (torch.tensor(each).reshape(-1, 1, 1) for each in (self.mean, self.std))
        return pixels.float().div_(self.pixel_max).sub_(mean).div_(std)

    def decoded(self, path: str | Path) -> Any:
        """The image of a file in the colors of this network, as Pillow has it."""
        image = optional_import("PIL.Image", extra="images", purpose="reading an image")
        with image.open(path) as opened:
            return opened.convert("L" if self.colors == "L" else "RGB")

    def pixels(self, image: Any) -> np.ndarray:
        """Pixels of shape (height, width, channels) from a Pillow image of any size."""
        found = np.asarray(self.cropped(image))
        return found[:, :, None] if found.ndim == 2 else found[:, :, ::-1] if self.colors == "BGR" else found

    def cropped(self, image: Any) -> Any:
        """Resize the shorter side to `resize`, then crop the center."""
        height, width = self.crop
        if not self.resize:
            return image if image.size == (width, height) else image.resize((width, height), _BILINEAR)
        wide, high = (self.resize * side // min(image.size) for side in image.size)
        if image.size != (wide, high):
            image = image.resize((wide, high), _BILINEAR)
        left, top = round((wide - width) / 2), round((high - height) / 2)
        return image.crop((left, top, left + width, top + height))

    def open(self, path: str | Path) -> Tensor:
        """A batch of one input from an image file. Raises DataError if there is none or it cannot be read."""
        if not Path(path).is_file():
            raise DataError(f"there is no image {path}")
        try:
            pixels = self.pixels(self.decoded(path))
        except MissingExtraError:
            raise
        except Exception as error:  # a damaged image can fail in any way
            raise DataError(f"{path} cannot be read as an image: {error}") from error
        return self.values(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]).contiguous()

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON, with the steps in words."""
        steps = f"shorter side to {self.resize}, center crop" if self.resize else "resize"
        values = f"x / {self.pixel_max}, then (x - mean) / std"
        words = f"{steps} to {self.crop[0]}x{self.crop[1]} (height x width), {self.colors}, {values}, channels first"
        return {**asdict(self), "interpolation": "bilinear", "in_words": words}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Preprocessing:
        """Raises ValueError or DataError for data that is not what `to_data` returns."""
        crop = counts(data, "crop")
        if len(crop) != 2:
            raise ValueError(f"'crop' has {len(crop)} sizes; expected height and width")
        colors: Any = field(data, "colors", str)
        return cls(
            crop=(crop[0], crop[1]),
            resize=field(data, "resize", int),
            mean=floats(data, "mean"),
            std=floats(data, "std"),
            pixel_max=field(data, "pixel_max", int),
            colors=colors,
        )


_BILINEAR = 2  # Pillow's Image.Resampling.BILINEAR, a number so that nothing is imported for it
