"""Batch norms of narrow channels_last tensors: the same outputs, gradients and running statistics as torch's own."""

import copy

import pytest
import torch
from torch import nn

from gator.training.narrow_norm import NarrowNorms, rows_together

CHANNELS_LAST = torch.channels_last


def both(x: torch.Tensor, norm: nn.BatchNorm2d) -> list[tuple[torch.Tensor, ...]]:
    """Output, gradients and running statistics without and with the mode."""
    direction = torch.randn(x.shape, dtype=x.dtype).to(memory_format=CHANNELS_LAST)
    found = []
    for narrow in (False, True):
        mine, inputs = copy.deepcopy(norm), x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        if narrow:
            with NarrowNorms():
                y = mine(inputs)
        else:
            y = mine(inputs)
        y.backward(direction)
        used = type(y.grad_fn).__name__ == "_NarrowNormBackward"
        assert used is (narrow and rows_together(x) > 1)
        assert y.is_contiguous(memory_format=CHANNELS_LAST)
        found.append((y.detach(), inputs.grad, mine.weight.grad, mine.bias.grad, mine.running_mean, mine.running_var))
    return found


@pytest.mark.parametrize("channels", [1, 3, 8, 13, 16, 40, 600])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_same_as_torch(channels: int, momentum: float | None) -> None:
    torch.manual_seed(channels)
    norm = nn.BatchNorm2d(channels, momentum=momentum).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = (3 + torch.randn(8, channels, 6, 4, dtype=torch.float64)).to(memory_format=CHANNELS_LAST)
    for expected, found in zip(*both(x, norm), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_bf16_with_weights_in_float32() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(13)
    x = torch.randn(16, 13, 8, 8).to(memory_format=CHANNELS_LAST)
    exact = [each.float() for each in both(x, norm)[0]]
    for found in both(x.bfloat16(), norm):  # neither torch's own result nor ours is further from float32 than bf16 rounds
        torch.testing.assert_close(found[0].float(), exact[0], rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(found[4], exact[4], rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(8, 6, 4, 4),  # not channels_last
        torch.randn(1, 6, 1, 3).to(memory_format=CHANNELS_LAST),  # an odd number of pixels
        torch.randn(8, 6),
    ],
)
def test_others_are_left_to_torch(x: torch.Tensor) -> None:
    norm = nn.BatchNorm2d(6) if x.ndim == 4 else nn.BatchNorm1d(6)
    with NarrowNorms():
        assert type(norm(x.requires_grad_()).grad_fn).__name__ == "NativeBatchNormBackward0"


def test_statistics_of_evaluation_are_left_to_torch() -> None:
    norm = nn.BatchNorm2d(6).eval()
    x = torch.randn(8, 6, 4, 4).to(memory_format=CHANNELS_LAST).requires_grad_()
    with NarrowNorms():
        assert type(norm(x).grad_fn).__name__ == "NativeBatchNormBackward0"


def test_the_output_may_be_changed_in_place() -> None:
    """As torchvision's networks do, with ReLU(inplace=True) after every norm."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 13, 3), nn.BatchNorm2d(13), nn.ReLU(inplace=True), nn.Conv2d(13, 5, 1))
    network = network.double().to(memory_format=CHANNELS_LAST)
    x = torch.randn(8, 3, 10, 10, dtype=torch.float64).to(memory_format=CHANNELS_LAST)
    expected = torch.autograd.grad(network(x).square().sum(), list(network.parameters()))
    with NarrowNorms():
        loss = network(x).square().sum()
    for found, wanted in zip(torch.autograd.grad(loss, list(network.parameters())), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
