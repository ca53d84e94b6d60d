"""Recipes: every wrong key, type or combination is named before any work; the shipped ones say what the paper says."""

from __future__ import annotations

import dataclasses
import inspect
from typing import get_args

import pytest
from training.small import short_recipe

import gator
from gator.cost.latency.runtimes.by_name import RUNTIMES
from gator.cost.latency.runtimes.run_setup import DEVICES, DTYPES
from gator.training.recipe import DeviceName, DtypeName, RuntimeName
from gator.training.recipe_check import check
from gator.training.recipe_file import SHIPPED, as_mapping, differing_keys, recipe_from_text, recipe_text

LEAST = """
name = "mine"
model.name = "digits:resnet"
data.name = "digits"
data.batch = 64
prune.epochs = 3
prune.target = 0.5
"""
NAMES = sorted(path.stem for path in SHIPPED.glob("*.toml"))


def test_the_least_a_recipe_needs() -> None:
    recipe = recipe_from_text(LEAST)
    assert (recipe.prune.target, recipe.train.epochs, recipe.finetune.epochs) == (0.5, 0, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("prune.tarjet=0.4", "prune.tarjet is not a key; did you mean prune.target?"),
        ("prune.learning_rate=1", "prune.learning_rate is not a key"),
        ("epochs=3", "epochs is not a key; did you mean prune.epochs?"),
        ("data.bach=3", "did you mean data.batch?"),
        ("data.batch=3.5", "data.batch = 3.5; expected an integer"),
        ("data.batch=true", "data.batch = True; expected an integer"),
        ("prune.lr=fast", "prune.lr = 'fast'; expected a number"),
        ("prune.alphas=1", "prune.alphas = 1; expected a list of numbers"),
        ("prune.keep=[1]", "prune.keep = 1; expected a string"),
        ("model=3", "model = 3; expected a table [model]"),
        ("prune.alphas=[2, 1]", "prune.alphas = [2.0, 1.0] must rise"),
        ("prune.cost=speed", "prune.cost = 'speed'; expected 'flops', 'memory' or 'latency'"),
        ("finetune.steps=[3]", 'finetune.steps and finetune.schedule = "steps" need each other'),
        ("data.sub_batch=7", "data.batch = 64 is not a multiple of data.sub_batch = 7"),
        ("train.distill=0.5", "train.distill: there is no dense network"),
        ("prune.epochs=0", "prune.epochs = 0; expected 1 or more"),
        ("run.precision=fp8", "run.precision = 'fp8'; expected 'no', 'bf16' or 'fp16'"),
        ("finetune.warmup=2", "finetune.warmup = 2.0; expected 0 to finetune.epochs"),
        ("prune.round_to=0", "prune.round_to = 0; expected 1 or more, or 'auto'"),
        ("prune.round_to=even", "prune.round_to = 'even'; expected an integer or 'auto'"),
        ("prune.targets=[0.5, 0.7]", "prune.targets = [0.5, 0.7] must fall"),
        ("prune.targets=[1.5]", "prune.targets = 1.5; expected a share"),
        ("prune.targets=[true]", "prune.targets = True; expected a number or a string"),
        ("prune.max_drop=-1", "prune.max_drop = -1.0; expected 0 or more"),
        ("prune.max_drop=1", "prune.max_drop chooses a network by its accuracy, which must not be that on the test set"),
        ("prune.criterion=l3", "prune.criterion = 'l3'; expected 'l1', 'l2'"),
        ("prune.criterion=l1", "prune.criterion chooses channels without training: set prune.epochs = 0"),
        ("prune.gated=0", "prune.gated = 0.0; expected a share of the steps, above 0 and up to 1"),
        ("prune.gated=1.5", "prune.gated = 1.5; expected a share of the steps, above 0 and up to 1"),
        ("prune.gamma=1.0", "prune.gamma = 1.0 has no effect with a target; leave it out, or give prune.alphas"),
        ("finetune.anneal=again", "finetune.anneal = 'again'; expected 'auto', 'restart' or 'continue'"),
        ("latency.device=tpu", "latency.device = 'tpu'; expected 'auto', 'cpu', 'cuda' or 'mps'"),
        ("latency.threads=-1", "latency.threads = -1; expected 0 or more"),
        ("latency.other_device=true", "latency.other_device needs latency.table"),
        ("prune", "--set 'prune': expected key=value"),
        ("name.first=1", "name is a single value, not a table"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: str, words: str) -> None:
    with pytest.raises(gator.RecipeError) as error:
        recipe_from_text(LEAST, [change])
    assert words in str(error.value)


def test_both_ways_to_say_how_much() -> None:
    with pytest.raises(gator.RecipeError, match="target and alphas are given"):
        recipe_from_text(LEAST + "prune.alphas = [1.0]\n")
    with pytest.raises(gator.RecipeError, match="none is given"):
        recipe_from_text(LEAST.replace("prune.target = 0.5", ""))


def test_a_change_of_alphas_replaces_the_target() -> None:
    assert recipe_from_text(LEAST, ["prune.alphas=[1, 2]"]).prune.target is None
    assert recipe_from_text(LEAST, ["prune.target=4 MB"]).prune.target == "4 MB"


@pytest.mark.parametrize(
    ("key", "changes"),
    [("prune.alphas", ["prune.alphas=[1.0]"]), ("prune.criterion", ["prune.criterion=l1", "prune.epochs=0"])],
)
def test_a_share_of_the_steps_needs_a_schedule(key, changes) -> None:
    with pytest.raises(gator.RecipeError, match=f"prune.gated = 0.5 has no effect with {key}; leave one of the two out"):
        recipe_from_text(LEAST, [*changes, "prune.gated=0.5"])


def test_a_missing_key_is_named() -> None:
    with pytest.raises(gator.RecipeError, match=r"data.batch is missing; expected an integer"):
        recipe_from_text(LEAST.replace("data.batch = 64", ""))


def test_a_file_that_is_not_there_or_not_toml(tmp_path) -> None:
    with pytest.raises(gator.RecipeError, match="it is neither a file nor one of cifar10-resnet20-cpu"):
        gator.read_recipe("nowhere")
    path = tmp_path / "x.toml"
    path.write_text("a = = 3")
    with pytest.raises(gator.RecipeError, match=r"x.toml: not valid TOML"):
        gator.read_recipe(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(gator.RecipeError, match="not a text file"):
        gator.read_recipe(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_written_out_reads_back_the_same(name: str) -> None:
    recipe = gator.read_recipe(name)
    assert recipe.name == name
    assert recipe_from_text(recipe_text(recipe)) == recipe


def test_differences_are_found_at_any_depth() -> None:
    one, two = as_mapping(short_recipe()), as_mapping(short_recipe("prune.target=0.4", "seed=3"))
    assert differing_keys(one, two) == ["prune.target", "seed"]


# The paper, section 4: optimizer; gating; fine-tuning; batch and sub-batch; the alphas of its tables.
IMAGENET = {
    "data.batch": 256, "data.sub_batch": 32, "data.image_size": 224, "prune.epochs": 30, "prune.lr": 0.01, "prune.steps": (20,),
    "finetune.lr": 0.001, "finetune.factor": 0.1, "latency.batch": 32,
}  # fmt: skip
LOW = {"finetune.epochs": 40, "finetune.steps": (20, 30)}
CIFAR = {
    "data.batch": 128, "train.epochs": 240, "train.lr": 0.1, "train.steps": (120, 180), "prune.epochs": 90, "prune.lr": 0.01,
    "prune.steps": (60,), "finetune.epochs": 30, "finetune.lr": 0.001, "finetune.schedule": "constant",
    "train.weight_decay": 1e-4,
}  # fmt: skip
PAPER = {
    "imagenet-resnet50-flops": (IMAGENET | LOW | {"prune.cost": "flops"}, (0.25, 0.5, 1, 2)),
    "imagenet-resnet50-latency": (IMAGENET | LOW | {"prune.cost": "latency"}, (0.25, 0.5, 1)),
    "imagenet-resnet50-highrate": (
        IMAGENET | {"prune.cost": "latency", "finetune.epochs": 20, "finetune.steps": (10, 15)}, (2, 4, 16, 20),
    ),
    "cifar10-resnet56-flops": (CIFAR | {"prune.cost": "flops"}, (1, 2, 16)),
    "cifar10-resnet56-memory": (CIFAR | {"prune.cost": "memory"}, (0.25, 0.5, 2)),
}  # fmt: skip
EVERYWHERE = {
    "prune.momentum": 0.9, "prune.weight_decay": 1e-4, "finetune.momentum": 0.9, "finetune.weight_decay": 1e-4,
    "prune.factor": 0.1, "prune.per": "example",
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_experiments(name: str) -> None:
    recipe = gator.read_recipe(name)
    figures, alphas = PAPER[name]
    for key, value in (figures | EVERYWHERE).items():
        table, _, field = key.partition(".")
        assert getattr(getattr(recipe, table), field) == value, key
    assert set(alphas) <= set(recipe.prune.alphas)
    assert ("resnet50" in name) == (recipe.model.name == "torchvision:resnet50")
    assert ("resnet56" in name) == (recipe.model.name == "cifar:resnet56")


def test_the_defaults_are_those_of_the_pruner() -> None:
    pruner = {name: parameter.default for name, parameter in inspect.signature(gator.Pruner).parameters.items()}
    pruner["gate_weight_decay"] = pruner["weight_decay"]
    recipe = recipe_from_text(LEAST).prune
    for key in ("cost", "per", "gamma", "gate_weight_decay", "min_width", "round_to", "keep"):
        assert getattr(recipe, key) == pruner[key], key


def test_the_choices_are_those_of_the_rooms_they_belong_to() -> None:
    assert set(get_args(RuntimeName)) == set(RUNTIMES)
    assert set(get_args(DtypeName)) == set(DTYPES)
    assert set(get_args(DeviceName)) == {"auto", *DEVICES}


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        ("prune", "per", "prune.per = 'rows'; expected 'example' or 'batch'"),
        ("latency", "runtime", "latency.runtime = 'rows'; expected 'eager', 'compile', 'onnxruntime' or 'openvino'"),
        ("run", "device", "run.device = 'rows'; expected 'auto', 'cpu', 'cuda' or 'mps'"),
        ("train", "optimizer", "train.optimizer = 'rows'; expected 'sgd' or 'adamw'"),
    ],
)
def test_a_recipe_made_in_python_is_checked_too(table: str, key: str, words: str, tmp_path) -> None:
    recipe = recipe_from_text(LEAST)
    wrong = dataclasses.replace(recipe, **{table: dataclasses.replace(getattr(recipe, table), **{key: "rows"})})
    with pytest.raises(gator.RecipeError) as error:
        gator.run(wrong, folder=tmp_path / "run")
    assert words in str(error.value)
    with pytest.raises(gator.RecipeError) as error:
        recipe_from_text(LEAST, [f"{table}.{key}=rows"])
    assert words in str(error.value)


@pytest.mark.parametrize("target", ["50%", '"50%"', '"0.5"', "300 MMACs"])
def test_a_target_may_be_a_string(target: str) -> None:
    recipe = recipe_from_text(LEAST, [f"prune.target={target}"])
    assert recipe.prune.target == target.strip('"')
    assert recipe_from_text(recipe_text(recipe)) == recipe


def test_a_recipe_made_in_python_is_checked_for_its_choices_too() -> None:
    recipe = short_recipe()
    with pytest.raises(gator.RecipeError, match=r"prune\.criterion = 'l3'; expected 'l1'"):
        check(dataclasses.replace(recipe, prune=dataclasses.replace(recipe.prune, criterion="l3", epochs=0)))
    with pytest.raises(gator.RecipeError, match=r"run\.channels_last = 'yes'; expected 'auto'"):
        check(dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, channels_last="yes")))
