"""A commented recipe for a folder of images: what `gator init` writes.

The numbers are starting points: enough steps for gates to settle, and fine-tuning for twice as long.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from gator.zoo.image_folder import class_names, count_images
from gator.zoo.models import build
from gator.zoo.user_file import is_file

_GATED_STEPS = 400  # at least, with gates: fewer leave no time to choose
_BATCHES = (64, 32, 16, 8)
_STEPS_AN_EPOCH = 8  # at least, of the batch size that is chosen

_TEMPLATE = """\
# {classes} classes, {images:,} training images. Change what you like; `gator prune {file} --dry-run` tries it in a minute.
name = "{name}"  # of the run folder, runs/{name}
seed = 0

[model]
name = "{model}"
weights = "{weights}"  # a file, "pretrained" (torchvision, timm), or "" for random weights

[data]
name = "imagefolder"  # train/CLASS/*.jpg and val/CLASS/*.jpg
folder = "{folder}"
image_size = {size}
batch = {batch}  # examples per optimizer step; data.sub_batch = {half} needs less memory
workers = {workers}  # processes that decode images

[train]  # before pruning{why_train}
epochs = {train_epochs}
lr = {train_lr}  # falls to 0 along a cosine
nesterov = true
weight_decay = 5e-4

[prune]  # training with gates, while channels are removed
cost = "flops"  # or "memory", or "latency" for time measured on this machine
target = {target:g}  # the share to keep; or "300 MMACs", "4 MB", "5 ms"
epochs = {prune_epochs}
lr = {lr}
nesterov = true
weight_decay = 5e-4
distill = 0.5  # half of the loss comes from the network before pruning, as a teacher

[finetune]  # training of the smaller network
epochs = {finetune_epochs}
lr = {lr}
nesterov = true
weight_decay = 5e-4
distill = 0.5

[latency]
batch = 1  # for the times in the result

[run]
precision = "no"  # "bf16" is faster where the processor or the GPU has it
"""
_COMMENTS = 32  # the column that comments begin in


def starting_recipe(
    folder: str, model: str, *, weights: str, target: float, image_size: int, name: str, file: str
) -> tuple[str, str]:
    """The text of a recipe, and a sentence about what was found. Raises an error if folder or network cannot be used."""
    names, images = class_names(Path(folder)), count_images(Path(folder))
    example = torch.zeros(1, 3, image_size, image_size) if image_size else None
    if example is None and is_file(model):
        example = _own_example(model)
    network = build(model, classes=len(names), example_inputs=example)
    size = image_size or _size(network.example_inputs)
    batch = next((b for b in _BATCHES if images >= _STEPS_AN_EPOCH * b), min(_BATCHES[-1], images))
    gated = min(max(5, math.ceil(_GATED_STEPS * batch / max(images, 1))), 40)
    published = weights.partition(":")[0] == "pretrained"
    given = bool(weights) and not published
    text = _TEMPLATE.format(
        classes=len(names), images=images, file=file, name=name, model=model, weights=weights, folder=folder,
        size=size, batch=batch, half=1 if batch % 2 else batch // 2, workers=2 if images > 2000 else 0, target=target,
        prune_epochs=gated, finetune_epochs=2 * gated,
        why_train=": the classifier is new" if published else "; 0 epochs if the weights are already trained on these classes",
        train_epochs=0 if given else gated if published else 3 * gated, train_lr=0.01 if published or given else 0.1,
        lr=0.01 if published else 0.05,
    )  # fmt: skip
    text = "\n".join(_aligned(line) for line in text.split("\n"))
    return text, f"{len(names)} classes, {images:,} training images of {size}x{size} pixels; {target:g} of the MACs of {model}"


def _aligned(line: str) -> str:
    setting, separator, comment = line.partition("  # ")
    return f"{setting:{_COMMENTS}}# {comment}" if separator else line


def _own_example(model: str) -> Tensor | None:
    """None if the factory gives example inputs itself, else those of a usual size."""
    from gator.errors import ModelNameError

    try:
        build(model)
    except ModelNameError as error:
        if "example inputs" not in str(error):
            raise
        return torch.zeros(1, 3, 224, 224)
    return None


def _size(example: object) -> int:
    return int(example.shape[-1]) if isinstance(example, Tensor) and example.ndim == 4 else 224
