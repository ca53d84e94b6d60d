"""Learning rates by hand."""

import pytest

from gator.training.recipe import Phase
from gator.training.schedule import learning_rate


def rates(phase: Phase, steps: int = 10) -> list[float]:
    return [learning_rate(phase, step, steps) for step in range(phase.epochs * steps)]


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
