"""Which keys of a recipe may change when a run is resumed: those that a checkpoint does not depend on."""

from __future__ import annotations

from pathlib import Path

from gator.errors import RunError
from gator.training.recipe import Recipe
from gator.training.recipe_file import as_mapping, differing_keys, read_recipe

_PHASES = ("train", "prune", "finetune")
_OF_A_PHASE = (
    "lr", "schedule", "steps", "factor", "warmup", "momentum", "nesterov", "weight_decay", "label_smoothing", "clip", "distill",
    "temperature",
)  # fmt: skip
_NOT_OF_RUN = ("run.precision",)  # the scaler of the gradients is in the checkpoint


def may_change(key: str) -> bool:
    """Whether a run can be resumed with another value of this key."""
    table, _, name = key.partition(".")
    return (table in _PHASES and name in _OF_A_PHASE) or (table == "run" and key not in _NOT_OF_RUN)


def changed_recipe(path: Path, changes: tuple[str, ...]) -> Recipe:
    """The recipe of a run folder with changes. Raises a RunError if one of them would not fit its checkpoints."""
    before, after = read_recipe(path), read_recipe(path, changes)
    wrong = [key for key in differing_keys(as_mapping(before), as_mapping(after)) if not may_change(key)]
    if wrong:
        phases = ", ".join(f"[{phase}]" for phase in _PHASES)
        raise RunError(
            f"{', '.join(wrong)} cannot change when a run is resumed; start a new run instead\n"
            f"  These may change: {', '.join(_OF_A_PHASE)} of {phases}; and all of [run] but precision."
        )
    return after
