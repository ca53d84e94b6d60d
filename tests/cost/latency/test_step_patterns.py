"""Step patterns: found from the times of neighbouring widths, under noise."""

from __future__ import annotations

import numpy as np
import pytest

from gator.cost.latency.table.step_patterns import LayerSteps, StepPattern, pattern_of, series_widths
from gator.cost.latency.table.time_grid import TimeGrid, grid_points


@pytest.mark.parametrize(("block", "alignment"), [(1, 1), (4, 1), (8, 1), (8, 4), (8, 8), (16, 1), (32, 4)])
@pytest.mark.parametrize("padded", [True, False])
def test_patterns_are_found_under_noise(block, alignment, padded) -> None:
    """Widths that are not aligned take a fifth longer than the full block, or than their channels would."""
    noise = np.random.default_rng(0)

    def time(width: int) -> float:
        full = -(-width // block) * block
        longer = 1.2 * (1.0 + full) if padded else 1.0 + 1.2 * width
        return (longer if width % alignment else 1.0 + full) * noise.normal(1, 0.03)

    series = [{w: time(w) for w in range(first, first + 33)} for first in (32, 32, 32)]
    found = pattern_of(series)
    assert (found.block, found.alignment) == (block, alignment)


@pytest.mark.parametrize(("first", "last"), [(32, 64), (16, 48), (24, 56)])
def test_blocks_that_are_processed_several_at_a_time(first, last) -> None:
    """A single last block takes as long as two, wherever the series begins and however long the layer takes."""
    noise, costs = np.random.default_rng(0), (2.0, 2.5, 3.0, 4.0)

    def time(width: int, scale: float) -> float:
        full, rest = divmod(-(-width // 8), 4)
        return (1.0 + scale * (4 * full + (costs[rest - 1] if rest else 0.0))) * noise.normal(1, 0.01)

    pattern = pattern_of([{w: time(w, scale) for w in range(first, last + 1)} for scale in (0.5, 2.0)])
    assert (pattern.block, pattern.alignment) == (8, 1)
    assert pattern.period_costs == pytest.approx(costs, abs=0.2)
    assert pattern.cost(64) == pattern.cost(57) == 8
    assert pattern.cost(33) == pattern.cost(40) == pytest.approx(6, abs=0.2)
    assert pattern.cost(512) == 64


def test_noise_does_not_put_one_block_before_another() -> None:
    """It may say that a second block takes nothing, or that a third takes as long as all four."""
    times = {width: (1.0, 3.0, 2.9, 5.1, 5.0)[-(-width // 8) - 4] for width in range(32, 65)}
    pattern = pattern_of([times])
    assert pattern.block == 8
    assert list(pattern.period_costs) == sorted(set(pattern.period_costs))
    steps = LayerSteps(StepPattern(), pattern)
    for full in (16, 24, 32, 64):
        grid = TimeGrid("title", (0, full), steps, {p: float(p[1]) for p in grid_points((0, full), steps)})
        assert all(0 < grid.at((0, width)) <= full + 1e-9 for width in range(1, full + 1))


def test_a_series_shorter_than_a_period_says_nothing_of_it() -> None:
    assert pattern_of([{width: -(-width // 8) * 8.0 for width in range(1, 25)}]).period_costs == ()


def test_layers_whose_time_does_not_depend_on_the_width_have_no_steps() -> None:
    assert pattern_of([dict.fromkeys(range(32, 65), 1.0)]) == StepPattern()
    assert pattern_of([]) == StepPattern()


def test_layers_that_depend_most_on_their_width_decide() -> None:
    shows = {width: -(-width // 8) * 8.0 for width in range(1, 33)}
    hides = {width: 100.0 + width // 16 for width in range(33, 65)}
    assert pattern_of([shows, hides, hides]).block == 8


def test_steps_are_looked_for_where_they_can_be_seen() -> None:
    assert series_widths(16) == list(range(1, 17))
    assert series_widths(48) == list(range(16, 49))
    assert series_widths(2048) == series_widths(64) == list(range(32, 65))
