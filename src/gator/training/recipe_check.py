"""`check`: a recipe is refused before any work is done if a value is out of range or two settings contradict each other.

The message names the key, the value that was found, and what was expected.
"""

from __future__ import annotations

import dataclasses
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gator.errors import RecipeError
from gator.training.recipe import DataSettings, LatencySettings, Phase, PrunePhase, Recipe
from gator.zoo.user_file import is_file


def check(recipe: Recipe) -> Recipe:
    """Return the recipe itself, or raise a RecipeError."""
    _need(bool(recipe.name) and "/" not in recipe.name, "name", recipe.name, "a name without slashes")
    _check_choices(recipe, "")
    _check_data(recipe.data)
    _need(all(size >= 1 for size in recipe.model.input), "model.input", recipe.model.input, "sizes of at least 1")
    for key, phase in (("train", recipe.train), ("prune", recipe.prune), ("finetune", recipe.finetune)):
        _check_phase(key, phase)
    if recipe.train.distill:
        raise RecipeError("train.distill: there is no dense network to learn from before it is trained; set it to 0")
    _check_prune(recipe.prune)
    _check_latency(recipe.latency)
    if recipe.prune.max_drop is not None and not recipe.data.hold_back and _has_test_set(recipe.data.name):
        raise RecipeError(
            "prune.max_drop chooses a network by its accuracy, which must not be that on the test set: set data.hold_back"
        )
    if recipe.finetune.anneal == "continue" and (recipe.prune.schedule != "cosine" or recipe.prune.alphas):
        raise RecipeError('finetune.anneal = "continue" needs prune.schedule = "cosine" and a target')
    if recipe.finetune.anneal == "continue" and not recipe.prune.epochs:
        raise RecipeError('finetune.anneal = "continue" has no effect with prune.epochs = 0; leave it out')
    _at_least(0, "finetune.recalibrate", recipe.finetune.recalibrate)
    _at_least(0, "run.threads", recipe.run.threads)
    _at_least(0, "run.checkpoint_seconds", recipe.run.checkpoint_seconds)
    _at_least(0, "run.timeout_seconds", recipe.run.timeout_seconds)
    _at_least(0, "run.evaluate_every", recipe.run.evaluate_every)
    return recipe


def _has_test_set(data: str) -> bool:
    return data != "imagefolder" and not is_file(data)


def listed(choices: tuple[Any, ...]) -> str:
    """The strings of a Literal, for a message: 'a', 'b' or 'c'."""
    *most, last = map(repr, choices)
    return f"{', '.join(most)} or {last}" if most else last


def _check_choices(settings: Any, path: str) -> None:
    """Every key whose type is a Literal has one of its values."""
    for name, hint in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            _check_choices(value, f"{path}{name}.")
            continue
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        others = tuple(kind for kind in kinds if isinstance(kind, type))
        if choices and not (others and isinstance(value, others)):
            _need(value in choices, f"{path}{name}", value, listed(tuple(choices)))


def _check_data(data: DataSettings) -> None:
    _at_least(1, "data.batch", data.batch)
    _at_least(0, "data.sub_batch", data.sub_batch)
    if data.sub_batch and data.batch % data.sub_batch:
        raise RecipeError(f"data.batch = {data.batch} is not a multiple of data.sub_batch = {data.sub_batch}")
    _at_least(1, "data.test_batch", data.test_batch)


def _check_phase(key: str, phase: Phase) -> None:
    _at_least(0, f"{key}.epochs", phase.epochs)
    _need(phase.lr > 0, f"{key}.lr", phase.lr, "a learning rate above 0")
    if (phase.schedule == "steps") != bool(phase.steps):
        raise RecipeError(f'{key}.steps and {key}.schedule = "steps" need each other: the epochs at which the rate falls')
    inside = all(0 < step < phase.epochs for step in phase.steps)
    rising = list(phase.steps) == sorted(set(phase.steps))
    if phase.epochs and not (inside and rising):
        raise RecipeError(f"{key}.steps = {list(phase.steps)} must rise and lie between 0 and {key}.epochs = {phase.epochs}")
    _need(0 <= phase.warmup <= phase.epochs, f"{key}.warmup", phase.warmup, f"0 to {key}.epochs")
    _need(0 <= phase.momentum < 1, f"{key}.momentum", phase.momentum, "0 or more and below 1")
    if phase.nesterov and not phase.momentum:
        raise RecipeError(f"{key}.nesterov needs {key}.momentum above 0")
    _at_least(0, f"{key}.weight_decay", phase.weight_decay)
    _need(0 <= phase.label_smoothing < 1, f"{key}.label_smoothing", phase.label_smoothing, "0 or more and below 1")
    _at_least(0, f"{key}.clip", phase.clip)
    _need(0 <= phase.distill <= 1, f"{key}.distill", phase.distill, "a weight from 0 to 1")
    _need(phase.temperature > 0, f"{key}.temperature", phase.temperature, "a number above 0")
    _need(0 < phase.factor <= 1, f"{key}.factor", phase.factor, "a factor above 0 and up to 1")


def _check_prune(prune: PrunePhase) -> None:
    if prune.criterion is None:
        _at_least(1, "prune.epochs", prune.epochs)
    elif prune.epochs or prune.alphas:
        raise RecipeError("prune.criterion chooses channels without training: set prune.epochs = 0 and a prune.target")
    given = [name for name in ("target", "targets", "alphas") if getattr(prune, name) not in (None, ())]
    if len(given) != 1:
        found = f"{' and '.join(given)} are given" if given else "none is given"
        raise RecipeError(f"prune.target, prune.targets or prune.alphas says how much to remove: give one of them ({found})")
    for key, target in [("target", prune.target), *(("targets", target) for target in prune.targets)]:
        if target is not None and not isinstance(target, str):
            _need(0 < target <= 1, f"prune.{key}", target, 'a share above 0 and up to 1, or a figure: "300 MMACs"')
    shares = [target for target in prune.targets if not isinstance(target, str)]
    if shares != sorted(set(shares), reverse=True):
        raise RecipeError(f"prune.targets = {list(prune.targets)} must fall: each round continues from the one before")
    if prune.max_drop is not None:
        _at_least(0, "prune.max_drop", prune.max_drop)
        if prune.alphas or prune.criterion is not None:
            raise RecipeError("prune.max_drop needs prune.target or prune.targets, and gates")
    _at_least(0, "prune.bisections", prune.bisections)
    _need(all(alpha >= 0 for alpha in prune.alphas), "prune.alphas", prune.alphas, "weights of 0 or more")
    if list(prune.alphas) != sorted(prune.alphas):
        raise RecipeError(f"prune.alphas = {list(prune.alphas)} must rise: each round continues from the one before")
    _need(prune.gamma > 0, "prune.gamma", prune.gamma, "a number above 0")
    _at_least(0, "prune.gate_weight_decay", prune.gate_weight_decay)
    for key in ("gamma", "gate_weight_decay"):
        if not prune.alphas and getattr(prune, key) != getattr(PrunePhase, key):
            found = getattr(prune, key)
            raise RecipeError(f"prune.{key} = {found!r} has no effect with a target; leave it out, or give prune.alphas")
    _need(0 < prune.gated <= 1, "prune.gated", prune.gated, "a share of the steps, above 0 and up to 1")
    if prune.gated < 1 and (prune.alphas or prune.criterion is not None):
        other = "prune.alphas" if prune.alphas else "prune.criterion"
        raise RecipeError(
            f"prune.gated = {prune.gated!r} has no effect with {other}; leave one of the two out\n"
            "  The share of the epochs with gates is for gates that follow a target: prune.target and prune.epochs."
        )
    _at_least(0, "prune.min_width", prune.min_width)
    fits = prune.round_to >= 1 if isinstance(prune.round_to, int) else prune.round_to == "auto"
    _need(fits, "prune.round_to", prune.round_to, "1 or more, or 'auto'")


def _check_latency(latency: LatencySettings) -> None:
    _at_least(0, "latency.threads", latency.threads)
    _at_least(1, "latency.batch", latency.batch)
    _at_least(1, "latency.rounds", latency.rounds)
    if latency.other_device and not latency.table:
        raise RecipeError("latency.other_device needs latency.table, the file that was measured on the other device")


def _at_least(least: int, key: str, found: float) -> None:
    _need(found >= least, key, found, f"{least} or more")


def _need(holds: bool, key: str, found: object, expected: str) -> None:
    if not holds:
        raise RecipeError(f"{key} = {found!r}; expected {expected}")
