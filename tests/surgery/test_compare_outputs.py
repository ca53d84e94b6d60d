"""The comparison of two outputs."""

from __future__ import annotations

import math

import torch

from gator.surgery.compare_outputs import difference


def test_the_difference_is_relative_to_the_larger_output() -> None:
    one, other = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 4.0])
    assert difference(one, other) == difference(other, one) == 0.75
    assert difference(torch.zeros(2), one) == difference(one, torch.zeros(2)) == 1
    assert difference(torch.zeros(2), torch.zeros(2)) == 0


def test_outputs_that_cannot_be_compared_differ_infinitely() -> None:
    one = torch.tensor([1.0, math.inf])
    assert difference(one, one) == 0
    assert difference(one, torch.tensor([math.inf, 1.0])) == math.inf
    assert difference(one, torch.tensor([1.0, math.nan])) == math.inf
    assert difference(one, one[:1]) == difference(one, [one]) == math.inf
