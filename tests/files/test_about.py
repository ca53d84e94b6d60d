"""What belongs to a network goes into its file, and the file opens by the name of its network."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support import gap, run

import gator
from gator import zoo
from gator.files.save import read_about

ABOUT = gator.About(
    network="digits:resnet",
    classes=10,
    input=(1, 8, 8),
    preprocessing=gator.Preprocessing((8, 8), 8, (0.3,), (0.4,), pixel_max=16, colors="L"),
    class_names=tuple("0123456789"),
    recipe="name = 'x'",
    tested_on="449 digits",
    figures={"accuracy": 97.5, "macs": 10},
    dense={"accuracy": 98.5, "macs": 20},
)


@pytest.fixture
def small() -> torch.nn.Module:
    model = zoo.build("digits:resnet").model.eval()
    return gator.cut(model, gator.trace(model, torch.zeros(1, 1, 8, 8)), {"stem": range(8)}).eval()


def test_the_file_says_it_and_opens_by_its_name(small, tmp_path) -> None:
    path, x = tmp_path / "small.safetensors", torch.randn(2, 1, 8, 8)
    gator.save(small, path, about=ABOUT)
    assert read_about(path) == ABOUT
    assert gap(run(small, x), run(gator.load(path).eval(), x)) == 0
    assert gap(run(small, x), run(gator.load(path, zoo.build("digits:resnet").model).eval(), x)) == 0


def test_a_network_that_was_not_cut_opens_too(tmp_path) -> None:
    path, model = tmp_path / "dense.safetensors", zoo.build("digits:resnet").model.eval()
    gator.save(model, path, about=ABOUT)
    x, before = torch.randn(2, 1, 8, 8), torch.get_rng_state()
    assert gap(run(model, x), run(gator.load(path).eval(), x)) == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_file_without_a_name_or_with_a_persons_own_code(small, tmp_path) -> None:
    path = tmp_path / "small.safetensors"
    gator.save(small, path)
    assert read_about(path) is None
    with pytest.raises(gator.FileError, match="does not name its network"):
        gator.load(path)
    (tmp_path / "net.py").write_text("raise SystemExit('this code ran')")
    gator.save(small, path, about=gator.About(network=f"{tmp_path}/net.py:net"))
    with pytest.raises(gator.FileError, match="a file does not decide which code runs"):
        gator.load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": "ten"}, "'classes' is a str"),
        ({"input": [0]}, "'input' holds 0"),
        ({"class_names": [1]}, "'class_names' holds a int"),
        ({"figures": {"macs": "many"}}, "figures.macs is a str"),
        ({"preprocessing": {"crop": [1, 2, 3]}}, "'crop' has 3 sizes"),
        ({"preprocessing": {**ABOUT.preprocessing.to_data(), "std": [0.0]}}, "every std above 0"),
    ],
)
def test_damage_is_named(change, words: str, small, tmp_path) -> None:
    path = tmp_path / "small.safetensors"
    gator.save(small, path, about=ABOUT)
    with safe_open(path, "pt") as file:
        content = json.loads(file.metadata()["gator"])
    content["about"] |= change
    save_file(load_file(path), path, metadata={"gator": json.dumps(content)})
    with pytest.raises(gator.FileError, match=words):
        gator.load(path)
