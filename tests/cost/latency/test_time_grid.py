"""Grids of times: which widths are timed, and what lies between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gator.cost.latency.table.step_patterns import LayerSteps, StepPattern
from gator.cost.latency.table.time_grid import TimeGrid, covers, grid_points


def test_grid_by_hand() -> None:
    """Aligned widths on either side, widths that are not, and a few with one of each."""
    steps = LayerSteps(StepPattern(8, 8), StepPattern(8, 8))
    points = grid_points((0, 48), steps)
    assert [p for p in points if p[1] % 8 == 0] == [(0, 8), (0, 16), (0, 32), (0, 48)]
    assert sorted(p for p in points if p[1] % 8) == [(0, 5), (0, 13), (0, 29), (0, 45)]
    assert grid_points((0, 3), LayerSteps()) == [(0, 1), (0, 2), (0, 3)]
    padded = LayerSteps(StepPattern(4, 4), StepPattern(8, 1))
    assert grid_points((0, 48), padded) == [(0, 8), (0, 16), (0, 32), (0, 48)]  # all widths are aligned
    assert grid_points((12, 0), padded) == [(4, 0), (8, 0), (12, 0), (3, 0), (7, 0), (11, 0)]
    assert padded.aligned((12, 7)) == (True, True)
    assert padded.aligned((10, 8)) == (False, True)
    assert padded.cost((12, 7)) == (3, 1)
    assert padded.cost((10, 7)) == (2.5, 1)
    assert StepPattern(8, 4).cost(12) == 2
    assert padded.block == 8
    grid = TimeGrid("title", (0, 48), steps, {p: p[1] / 8 + (2.0 if p[1] % 8 else 0.0) for p in points})
    assert grid.at((0, 40)) == pytest.approx(5.0)
    assert grid.at((0, 33)) == pytest.approx(33 / 8 + 2)
    assert grid.smooth(0, 20) == pytest.approx(2.5)
    assert covers((0, 48), (0, 40))
    assert not covers((0, 48), (3, 40))


def test_more_channels_never_take_less_time() -> None:
    steps = LayerSteps(StepPattern(8, 8), StepPattern(8, 8))
    noisy = TimeGrid("title", (0, 48), steps, {p: 1.0 + (0.2 if p[1] == 32 else 0.0) for p in grid_points((0, 48), steps)})
    times = [noisy.at((0, width)) for width in (8, 16, 24, 32, 40, 48)]
    assert times == sorted(times)


def test_a_channel_costs_its_share_whatever_its_block_costs() -> None:
    """In a narrow layer whose second block takes hardly longer than its first."""
    steps = LayerSteps(StepPattern(), StepPattern(8, 1, (2.9, 3.0, 3.7, 4.0)))
    grid = TimeGrid("title", (0, 16), steps, {(0, 8): 1.0, (0, 16): 1.1})
    assert grid.smooth(0.0, 16.0) == pytest.approx(1.1)
    assert grid.smooth(0.0, 12.0) - grid.smooth(0.0, 8.0) == pytest.approx(0.05)


@given(st.sampled_from([(b, a) for b in (1, 4, 8, 16, 32) for a in (1, 2, 4, 8, 16) if a <= b]), st.integers(1, 300))
def test_something_is_timed_of_every_width(pattern, full) -> None:
    """And both aligned widths and others, wherever there is room for both."""
    found = grid_points((0, full), LayerSteps(StepPattern(), StepPattern(*pattern)))
    assert found
    assert all(1 <= size <= full for _, size in found)
    block, alignment = pattern
    if full >= 2 * block and alignment > 1:
        assert {size % alignment == 0 for _, size in found} == {True, False}
