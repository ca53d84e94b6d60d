"""A layer norm over open channels: the same as the formula that autograd follows."""

from __future__ import annotations

import pytest
import torch
from support import gap

from gator.gates.gated_norm import layer_norm_of_open
from gator.surgery import masked_statistics


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_the_norm_and_all_gradients(rank, affine, share, rows):
    shape = (3, 5, 4, 10)[:1] + (5, 4)[: rank - 2] + (10,)
    gate = (torch.rand(rows, *[1] * (rank - 2), 10) >= share).double()
    gate[..., 0] = 1
    slope = torch.randn(shape).double()
    found = []
    for function in (_by_hand, _by_autograd):
        torch.manual_seed(3)
        leaves = [t.double().requires_grad_() for t in (torch.randn(shape), gate.clone(), torch.rand(10), torch.rand(10))]
        result = function(*leaves[:2], *(leaves[2:] if affine else (None, None)))
        (result * slope).sum().backward()
        found.append((result, [leaf.grad for leaf in leaves[: 4 if affine else 2]]))
    assert gap(*found) <= 1e-9


def _by_hand(x, gate, weight, bias):
    return layer_norm_of_open(x, gate, weight, bias, 1e-3)


def _by_autograd(x, gate, weight, bias):
    return masked_statistics.layer_norm(x, 1 - gate, (10,), weight, bias, 1e-3)


def test_half_precision_is_accumulated_in_single_precision():
    x, gate = torch.randn(4, 6, 64), (torch.rand(4, 1, 64) > 0.3).float()
    low = layer_norm_of_open(x.bfloat16(), gate, None, None, 1e-5)
    assert low.dtype == torch.bfloat16
    assert gap(low.float(), layer_norm_of_open(x.bfloat16().float(), gate, None, None, 1e-5)) <= 1e-2
