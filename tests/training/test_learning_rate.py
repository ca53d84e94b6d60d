"""Learning rates by hand."""

import dataclasses

import pytest
from training.small import short_recipe

from gator.training.learning_rate import Span, learning_rate, spans
from gator.training.recipe import Phase


def rates(phase: Phase, steps: int = 10, span: Span = Span()) -> list[float]:
    return [learning_rate(phase, step, steps, span) for step in range(phase.epochs * steps)]


def test_steps_fall_at_their_epochs() -> None:
    found = rates(Phase(epochs=4, lr=1.0, schedule="steps", steps=(2, 3)))
    assert found == pytest.approx([1.0] * 20 + [0.1] * 10 + [0.01] * 10)


def test_a_cosine_starts_at_the_rate_and_ends_near_zero() -> None:
    found = rates(Phase(epochs=2, lr=0.4))
    assert found[0] == 0.4
    assert found[10] == pytest.approx(0.2)
    assert 0 < found[-1] < 0.01
    assert found == sorted(found, reverse=True)


def test_a_warmup_rises_in_equal_steps_to_the_rate() -> None:
    found = rates(Phase(epochs=3, lr=1.0, schedule="constant", warmup=0.5))
    assert found[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert rates(Phase(epochs=3, lr=1.0, warmup=1.0))[10] == pytest.approx(1.0)


def test_one_annealing_over_both_phases_is_that_of_one_phase() -> None:
    recipe = short_recipe("prune.epochs=2", "finetune.epochs=3", "prune.lr=0.4", "prune.warmup=1", "prune.schedule=cosine")
    finetune, of_prune, of_finetune = spans(recipe)
    whole = rates(Phase(epochs=5, lr=0.4, warmup=1))
    assert rates(recipe.prune, span=of_prune) + rates(finetune, span=of_finetune) == pytest.approx(whole)


def test_a_long_run_and_several_targets_start_the_rate_again() -> None:
    short = short_recipe("prune.epochs=4", "finetune.epochs=8", "prune.schedule=cosine")
    assert spans(short)[1] == Span(0, 8)
    for change in ({"epochs": 5}, {"target": None, "targets": (0.7, 0.5)}, {"schedule": "constant"}):
        longer = dataclasses.replace(short, prune=dataclasses.replace(short.prune, **change))
        assert spans(longer) == (longer.finetune, Span(), Span())
