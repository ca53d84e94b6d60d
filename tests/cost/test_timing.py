"""Measurements are repeated if other processes were busy meanwhile."""

from __future__ import annotations

import itertools
import time

import pytest

from gator.cost import timing


def measured(monkeypatch, *others: float) -> tuple[int, int]:
    """Which measurement counts, and how many were made, if other processes used so many seconds of a processor in each."""
    readings = itertools.chain.from_iterable((0.0, seconds) for seconds in others)
    monkeypatch.setattr(timing, "_busy_seconds", lambda: next(readings))
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)  # every measurement takes a second
    made = itertools.count(1)
    found = timing.undisturbed(lambda: next(made), tries=3)
    return found, next(made) - 1


def test_the_first_quiet_one_counts(monkeypatch) -> None:
    assert measured(monkeypatch, 0.01) == (1, 1)
    assert measured(monkeypatch, 1.5, 0.02, 0.0) == (2, 2)


def test_otherwise_the_least_disturbed_one_counts(monkeypatch) -> None:
    assert measured(monkeypatch, 1.5, 0.5, 0.9) == (2, 3)


@pytest.mark.parametrize("text", ["", "cpu one two", "cpu 1 2 3"])
def test_where_the_activity_is_unknown_the_first_one_counts(monkeypatch, tmp_path, text) -> None:
    (tmp_path / "stat").write_text(text)
    monkeypatch.setattr(timing, "_STAT", tmp_path / "stat")
    made = itertools.count(1)
    assert timing.undisturbed(lambda: next(made)) == 1
