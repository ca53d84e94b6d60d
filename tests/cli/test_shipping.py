"""From a folder of images to a shipped network, as a user types it; docs/shipping.md is executed on the way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from training.small import set_options
from typer.testing import CliRunner

import gator
from gator.cli import main
from gator.zoo import load_data

pytestmark = [pytest.mark.slow, pytest.mark.trains]
ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "shipping.md").read_text(), re.S)
NETWORK = """
from torch import nn

def net():
    def block(a, b):
        return [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*block(3, 8), *block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
"""


def typed(*args: str) -> str:
    done = CliRunner().invoke(main.commands(), list(map(str, args)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def images(folder: Path) -> None:
    """Bright, dark and striped images, of many sizes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for part, count in (("train", 24), ("val", 6)):
        for name, level in (("bright", 200), ("dark", 40), ("striped", 120)):
            place = folder / part / name
            place.mkdir(parents=True)
            for index in range(count):
                height, width = random.integers(20, 50, 2)
                pixels = np.full((height, width, 3), level) + random.integers(-30, 30, (height, width, 3))
                if name == "striped":
                    pixels[::4] = 255
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{index}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipping")
    images(folder / "shapes")
    (folder / "net.py").write_text(NETWORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        typed("init", "shapes", "net.py:net", "--target", "0.5", "--image-size", "16")
        said = typed("prune", "recipe.toml", "--dry-run")
        assert "two steps of every phase done on made-up data of shape 3x16x16" in said
        short = set_options("data.batch=8", "prune.round_to=1", "train.epochs=4", "prune.epochs=4")
        assert "network: runs/shapes/round-1.safetensors" in typed("prune", "recipe.toml", *short)
        for kind in ("onnx", "pt2", "openvino"):
            assert "8 real examples" in typed("export", "runs/shapes", "--to", kind)
        yield folder


def test_the_run_folder_and_the_file_say_the_same(place) -> None:
    from gator.files.save import read_about

    run = json.loads((place / "runs" / "shapes" / "about.json").read_text())
    about = read_about(place / "runs" / "shapes" / "round-1.safetensors")
    assert run["class_names"] == list(about.class_names) == ["bright", "dark", "striped"]
    assert run["preprocessing"] == json.loads(json.dumps(about.preprocessing.to_data()))
    assert about.preprocessing == gator.Preprocessing((16, 16), 18)
    assert gator.read_recipe(place / "runs" / "shapes" / "recipe.toml").prune.target == 0.5
    assert 'name = "net.py:net"' in about.recipe
    result = json.loads((place / "runs" / "shapes" / "result.json").read_text())
    assert about.accuracy == result["rounds"][0]["figures"]["accuracy"]
    assert about.dense["macs"] == result["before"]["macs"]


def test_one_image_three_ways(place) -> None:
    """`gator predict` on every format, plain Python with ONNX Runtime, and the training code give the same probability."""
    network = gator.load("runs/shapes/round-1.safetensors", _fresh(place)).eval()
    data = load_data("imagefolder", folder="shapes", image_size=16, batch=1)
    (x, _), *_ = data.test.batches(0)
    with torch.no_grad():
        expected = network(x).softmax(1)
    files = [path for name in data.class_names for path in sorted((place / "shapes" / "val" / name).iterdir())]
    for index in (0, 7, 13):
        best = int(expected[index].argmax())
        for source in ("runs/shapes", *(f"runs/shapes/round-1.{suffix}" for suffix in ("onnx", "pt2", "xml"))):
            said = json.loads(typed("predict", source, str(files[index]), "--json"))
            assert said["class"] == data.class_names[best]
            for name, share in zip(data.class_names, expected[index].tolist(), strict=True):
                assert said["probabilities"][name] == pytest.approx(share, abs=1e-4)
        name, share = plain(BLOCKS[0], "runs/shapes/round-1.onnx", str(files[index]), folder=place).split()
        assert (name, float(share)) == (data.class_names[best], pytest.approx(float(expected[index, best]), abs=1e-4))
    said = typed("predict", "runs/shapes", str(files[0]), str(files[7]), "--top", "2")
    assert re.fullmatch(r"(\S+: \w+ [\d.]+ %, \w+ [\d.]+ %\n){2}", said)


def _fresh(place: Path) -> torch.nn.Module:
    from gator import zoo

    return zoo.build(f"{place}/net.py:net", example_inputs=torch.zeros(1, 3, 16, 16)).model


def plain(code: str, *args: str, folder: Path) -> str:
    """What a program prints that cannot import gator."""
    code = f"import sys; sys.modules['gator'] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_other_programs_of_the_documentation(place) -> None:
    assert len(BLOCKS) == 3
    assert plain(BLOCKS[1], "runs/shapes/round-1.pt2", folder=place) == "['bright', 'dark', 'striped'] torch.Size([1, 3])\n"
    (place / "mine.py").write_text(BLOCKS[2])
    data = load_data(f"{place}/mine.py:data", batch=4)
    assert (data.classes, data.class_names, data.preprocessing.resize) == (2, ("cat", "dog"), 36)
    assert len([line for line in BLOCKS[0].splitlines() if line and not line.startswith(("import", "from"))]) <= 10


def test_evaluation_says_what_was_recorded(place) -> None:
    for source in ("runs/shapes", "runs/shapes/round-1.onnx", "runs/shapes/round-1.xml", "runs/shapes/round-1.pt2"):
        assert "% on 18 validation images (as recorded)" in typed("eval", source)
        assert "(as recorded)" in typed("eval", source, "--data", "shapes")
    figures = json.loads(typed("eval", "runs/shapes", "--json"))
    result = json.loads((place / "runs" / "shapes" / "result.json").read_text())["rounds"][0]["figures"]
    assert (figures["macs"], figures["params"]) == (result["macs"], result["params"])
    dense = "runs/shapes/dense.safetensors"
    said = typed("measure", "runs/shapes", "--against", dense, "--model", "net.py:net", "--rounds", "2", "--layers", "0")
    assert f"runs/shapes: {result['macs']:,} MACs" in said


def test_what_cannot_be_done_is_said(place) -> None:
    for args, words in [
        (("predict", "runs/shapes/round-1.safetensors", "x.png"), "--model net.py:net"),
        (("predict", "runs/shapes", "x.png"), "there is no image x.png"),
        (("predict", "shapes", "x.png"), "is not a run folder"),
        (("predict", "net.py", "x.png"), "neither a run folder nor a network file"),
        (("predict", "nothing.onnx", "x.png"), "there is no file nothing.onnx"),
        (("export", "runs/shapes", "--to", "tflite"), "expected onnx, pt2 or openvino"),
        (("export", "runs/shapes/round-1.onnx"), "is exported already"),
        (("export", "runs/shapes", "--out", "x.pt2"), "ends in .onnx"),
        (("eval", "runs/shapes", "--data", "digits"), "the data has other classes than the network: 10"),
        (("measure", "runs/shapes/round-1.onnx"), "is an exported file"),
        (("init", "shapes", "net.py:net"), "recipe.toml exists already"),
        (("init", "nowhere", "net.py:net", "--out", "other.toml"), "there is no folder nowhere"),
        (("recipes", "digit"), "did you mean digits?"),
    ]:
        with pytest.raises(gator.GatorError, match=re.escape(words)):
            typed(*args)


def test_the_shipped_recipes_are_listed_and_shown() -> None:
    listed = typed("recipes")
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        assert f"{path.stem}\n" in listed
        assert typed("recipes", path.stem) == path.read_text()


def test_a_class_without_validation_images_is_said(place, caplog) -> None:
    import shutil

    shutil.copytree("shapes", "some")
    shutil.rmtree("some/val/dark")
    load_data("imagefolder", folder="some", image_size=16, batch=1)
    assert "has no folder for 1 of 3 classes (dark): the accuracy says nothing about them" in caplog.text
