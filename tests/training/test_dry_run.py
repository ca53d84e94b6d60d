"""Every shipped recipe can be run: built in full, two steps of every phase, nothing left behind."""

from __future__ import annotations

import re

import pytest
from training.small import short_recipe

import gator
from gator.training.dry_run import dry_run
from gator.training.recipe_file import SHIPPED, recipe_from_text

QUICK = ("digits",)
NAMES = sorted(path.stem for path in SHIPPED.glob("*.toml"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES])
def test_every_recipe_passes_a_dry_run(name, torchvision, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    smaller = ["data.image_size=96"] if name.startswith("imagenet") else []  # a fifth of the time, and all else the same
    said = dry_run(gator.read_recipe(name, smaller))
    assert said.startswith(f"{name}: two steps of every phase done on made-up data")
    assert "MACs left" in said
    assert not list(tmp_path.iterdir())


def test_what_a_real_run_would_refuse_is_refused() -> None:
    with pytest.raises(gator.GatorError, match="no_such_edge"):
        dry_run(short_recipe('prune.keep=["no_such_edge"]'))
    with pytest.raises(gator.GatorError, match="1 MACs"):
        dry_run(short_recipe("prune.target=1 MACs"))


@pytest.mark.trains
def test_the_persons_own_network_and_data(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))\n"
        "def data(batch):\n"
        "    generator = torch.Generator().manual_seed(0)\n"
        "    x = torch.randn(120, 6, generator=generator)\n"
        "    set = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))\n"
        "    load = torch.utils.data.DataLoader\n"
        "    return load(set, batch_size=batch, shuffle=True, drop_last=True), load(set, batch_size=60)\n"
    )
    recipe = recipe_from_text(f"""
        name = "mine"
        model = {{name = "{path}:net", input = [6]}}
        data = {{name = "{path}:data", batch = 30}}
        train = {{epochs = 3, lr = 0.1}}
        prune = {{epochs = 3, target = 0.5}}
        finetune = {{epochs = 3}}
    """)
    assert "made-up data of shape 6" in dry_run(recipe)
    result = gator.run(recipe, folder=tmp_path / "run")
    assert result.rounds[0].figures.macs <= 0.5 * result.before.macs


@pytest.mark.parametrize("target", ['"50%"', '"0.5"', "0.5"])
def test_a_target_as_a_share_in_any_form(target: str) -> None:
    said = dry_run(short_recipe(f"prune.target={target}", "latency.rounds=1"))
    left, before = (int(figure.replace(",", "")) for figure in re.search(r"([\d,]+) of ([\d,]+) MACs left", said).groups())
    assert 0.4 * before < left <= 0.5 * before


def test_a_recipe_with_one_annealing_can_be_tried() -> None:
    assert "two steps of every phase" in dry_run(short_recipe('finetune.anneal="continue"', "latency.rounds=1"))
