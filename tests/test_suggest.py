"""Suggestions for misspelled names."""

from gator.suggest import did_you_mean


def test_the_nearest_names_come_first() -> None:
    assert did_you_mean("conv2", ["head", "conv", "conv1"]) == "did you mean conv or conv1?"
    assert did_you_mean("conv2", ["head", "conv", "conv1"], at_most=1) == "did you mean conv?"


def test_nothing_near() -> None:
    assert did_you_mean("zzz", ["head", "conv1"], otherwise="it has head and conv1") == "it has head and conv1"
    assert did_you_mean("zzz", []) == ""
