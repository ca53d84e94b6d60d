"""What a run says at the beginning of a phase, in lines of at most 80 columns."""

from __future__ import annotations

from gator.training.loop import Loop


def of_training(loop: Loop) -> str:
    return f"train: {_length(loop)}; every line is an epoch"


def of_gates(loop: Loop, goal: str, batches: int) -> str:
    """The goal, and which network the accuracies of the next epochs belong to."""
    norms = f"with batch norms recalibrated on {batches} batches" if batches else "without recalibrated batch norms"
    return (
        f"prune {loop.number + 1}: {_length(loop)} with gates, {goal}\n"
        "  The accuracy is that of the network as it would be cut now,\n"
        f"  {norms}. It may fall for now."
    )


def of_cut(size: str, as_cut: float, recalibrated: float) -> str:
    return (
        f"cut to {size}\n"
        f"  accuracy {as_cut:.2f} % right after the cut, {recalibrated:.2f} % with recalibrated batch norms,\n"
        "  and before fine-tuning"
    )


def of_fine_tuning(loop: Loop) -> str:
    return f"finetune {loop.number + 1}: {_length(loop)}"


def _length(loop: Loop) -> str:
    return f"{loop.phase.epochs} epochs of {loop.steps_an_epoch} steps"
