"""Fits: what makes a network slower or faster than the sum of its layers is found, and what does not stays out."""

from __future__ import annotations

import numpy as np
import pytest

from gator.cost.latency.fit import LatencyFit, mape, rank_correlation, solve
from gator.cost.latency.layer_times import NetworkParts


@pytest.mark.parametrize(("border", "rest"), [(0.0, 0.0), (2.0, 0.0), (0.0, 3.0), (2.0, 3.0)])
def test_what_borders_save_and_the_constant_are_found(border, rest) -> None:
    draw = np.random.default_rng(0)
    parts = [NetworkParts({"3x3": draw.uniform(10, 99), "1x1": draw.uniform(10, 99)}, draw.uniform(0, 5)) for _ in range(20)]
    exact = [1.2 * sum(part.layers.values()) - border * part.borders + rest for part in parts]
    fit, error = solve(parts, [time * draw.normal(1, 0.002) for time in exact], 0.25)
    assert fit.factors == pytest.approx({"3x3": 1.2, "1x1": 1.2}, rel=0.02)
    assert fit.border_ms == pytest.approx(border, abs=0.2)
    assert fit.rest_ms == pytest.approx(rest, abs=0.5)
    assert fit.alone_ms == 0.25
    assert error < 0.003**2


def test_groups_have_factors_of_their_own() -> None:
    """As far as the networks show them; a group that takes hardly any time keeps the common factor."""
    draw = np.random.default_rng(0)
    parts = [NetworkParts({"3x3": draw.uniform(10, 99), "1x1": draw.uniform(10, 99), "head": 0.01}, 0.0) for _ in range(20)]
    fit, _ = solve(parts, [1.4 * part.layers["3x3"] + 1.0 * part.layers["1x1"] for part in parts])
    assert 1.3 < fit.factors["3x3"] < 1.45
    assert 0.95 < fit.factors["1x1"] < 1.1
    assert 1.1 < fit.factors["head"] < 1.3


def test_savings_never_exceed_the_time_of_layers() -> None:
    fit = LatencyFit({"3x3": 1.0}, 5.0, 0.5, 0.0)
    assert fit.total(NetworkParts({"3x3": 1.0}, 10.0)) == pytest.approx(0.7)
    assert fit.total(NetworkParts({"3x3": 1.0}, 0.1)) == pytest.approx(1.0)
    assert LatencyFit({"3x3": 1.0}, 0.0, 0.5, 0.0).total(NetworkParts({"3x3": 1.0}, 10.0)) == pytest.approx(1.5)


def test_errors_by_hand() -> None:
    assert mape([1.1, 1.8], [1.0, 2.0]) == pytest.approx(0.1)
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]) == pytest.approx(0.5)
