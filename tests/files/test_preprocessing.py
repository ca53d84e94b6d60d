"""An image becomes an input as the record says, pixel by pixel."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import gator

Image = pytest.importorskip("PIL.Image")


def drawn(tmp_path, width: int, height: int, mode: str = "RGB"):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    image.save(tmp_path / "image.png")
    return tmp_path / "image.png", np.asarray(image)


def test_an_image_of_the_right_size_is_only_normalized(tmp_path) -> None:
    path, pixels = drawn(tmp_path, 32, 32)
    found = gator.Preprocessing((32, 32), 32, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)).open(path)
    expected = (pixels / 255 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.6, 0.7])
    assert found.shape == (1, 3, 32, 32)
    assert np.allclose(found[0].permute(1, 2, 0).numpy(), expected, atol=1e-6)


def test_the_order_of_colors_and_grey(tmp_path) -> None:
    path, pixels = drawn(tmp_path, 8, 8)
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    one, other = (gator.Preprocessing((8, 8), 8, **plain, colors=colors).open(path) for colors in ("RGB", "BGR"))
    assert torch.equal(one.flip(1), other)
    grey = gator.Preprocessing((8, 8), 8, (0.0,), (1.0,), pixel_max=1, colors="L").open(path)
    assert np.array_equal(grey[0, 0].numpy(), np.asarray(Image.fromarray(pixels).convert("L")))


@pytest.mark.parametrize(("width", "height"), [(60, 40), (41, 77), (20, 20)])
def test_the_shorter_side_is_resized_and_the_center_cropped(width: int, height: int, tmp_path) -> None:
    path, pixels = drawn(tmp_path, width, height)
    found = gator.Preprocessing((24, 28), 32, (0.0,) * 3, (1.0,) * 3).open(path)
    short = min(width, height)
    resized = Image.fromarray(pixels).resize((32 * width // short, 32 * height // short), Image.Resampling.BILINEAR)
    left, top = round((resized.width - 28) / 2), round((resized.height - 24) / 2)
    expected = np.asarray(resized)[top : top + 24, left : left + 28] / 255
    assert np.allclose(found[0].permute(1, 2, 0).numpy(), expected, atol=1e-6)
    whole = gator.Preprocessing((24, 28), 0, (0.0,) * 3, (1.0,) * 3).open(path)
    assert np.allclose(whole[0].permute(1, 2, 0).numpy(), np.asarray(Image.fromarray(pixels).resize((28, 24), 2)) / 255)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mean": (0.5,)}, "expected 3 values each"),
        ({"std": (1.0, 0.0, 1.0)}, "every std above 0"),
        ({"colors": "HSV"}, "expected 'RGB', 'BGR' or 'L'"),
        ({"crop": (0, 8)}, "expected positive sizes"),
        ({"resize": 4}, "the shorter side must cover the crop"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, words: str) -> None:
    with pytest.raises(gator.DataError, match=words):
        gator.Preprocessing(**({"crop": (8, 8), "resize": 8} | settings))


def test_files_that_are_no_images(tmp_path) -> None:
    (tmp_path / "text.png").write_text("no image")
    preprocessing = gator.Preprocessing((8, 8), 8)
    with pytest.raises(gator.DataError, match=r"text\.png cannot be read as an image"):
        preprocessing.open(tmp_path / "text.png")
    with pytest.raises(gator.DataError, match="there is no image"):
        preprocessing.open(tmp_path / "none.png")


def test_as_json_and_back() -> None:
    preprocessing = gator.Preprocessing((8, 6), 9, (0.5,), (0.25,), pixel_max=16, colors="L")
    assert gator.Preprocessing.from_data(json.loads(json.dumps(preprocessing.to_data()))) == preprocessing
