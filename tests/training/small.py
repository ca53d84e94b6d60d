"""A run of seconds for the tests: the digits recipe with a few short epochs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from gator.training.recipe import Recipe
from gator.training.recipe_file import read_recipe

THREADS = torch.get_num_threads()  # as many as the tests have
SHORT = (
    "train.epochs=2", "prune.epochs=2", "finetune.epochs=1", "finetune.recalibrate=3", "data.batch=192", "latency.rounds=2",
    "latency.batch=2", "latency.threads=1", f"run.threads={THREADS}",
)  # fmt: skip


def short_recipe(*changes: str) -> Recipe:
    return read_recipe("digits", [*SHORT, *changes])


def set_options(*changes: str) -> list[str]:
    return [word for change in (*SHORT, *changes) for word in ("--set", change)]


def tensors_of(path: Path) -> dict[str, bytes]:
    from safetensors.torch import load_file

    return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
