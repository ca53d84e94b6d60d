"""Batch norms of narrow channels_last tensors: the same outputs, gradients and running statistics as torch's own."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from training.small import short_recipe

import gator
from gator.training import narrow_norm
from gator.training.narrow_norm import NarrowNorms, group_size

CHANNELS_LAST = torch.channels_last


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_norm, "_LARGE", 0)


def both(x: torch.Tensor, norm: nn.BatchNorm2d, direction: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Output, gradients and running statistics without and with the mode."""
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
        assert used is (narrow and group_size(x) > 1)
        assert y.is_contiguous(memory_format=CHANNELS_LAST)
        found.append((y.detach(), inputs.grad, mine.weight.grad, mine.bias.grad, mine.running_mean, mine.running_var))
    return found


@pytest.mark.parametrize("channels", [1, 3, 8, 13, 20, 40, 600])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_same_as_torch(channels: int, momentum: float | None, dtype: torch.dtype, close: float) -> None:
    torch.manual_seed(channels)
    norm = nn.BatchNorm2d(channels, momentum=momentum).to(dtype)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = (3 + torch.randn(16, channels, 12, 12, dtype=dtype)).to(memory_format=CHANNELS_LAST)
    for expected, found in zip(*both(x, norm, torch.randn_like(x)), strict=True):
        torch.testing.assert_close(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize("along", ["noise", "constant", "input"])
def test_bf16_with_weights_in_float32(along: str) -> None:
    """Gradients that are nearly constant, or nearly the input, nearly cancel: they must not be rounded before they do."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(13)
    x = torch.randn(64, 13, 24, 24).to(memory_format=CHANNELS_LAST).bfloat16()
    noise = torch.randn(64, 13, 24, 24).to(memory_format=CHANNELS_LAST)
    direction = {"noise": noise, "constant": 1 + 0.05 * noise, "input": x.float() + 0.05 * noise}[along].bfloat16()
    exact = both(x.double(), copy.deepcopy(norm).double(), direction.double())[0]

    def errors(found: tuple[torch.Tensor, ...]) -> list[float]:
        pairs = zip(found, exact, strict=True)
        return [float((one.double() - other).norm() / other.norm().clamp(min=1e-3)) for one, other in pairs]

    torchs, ours = map(errors, both(x, norm, direction))
    for expected, found in zip(torchs, ours, strict=True):
        assert found <= 2 * expected + 1e-4


@pytest.mark.parametrize("frozen", [False, True])
def test_norms_without_running_statistics_or_gradients(frozen: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6, track_running_stats=False).requires_grad_(not frozen)
    x = torch.randn(16, 6, 12, 12).to(memory_format=CHANNELS_LAST).requires_grad_()
    expected = torch.autograd.grad(norm(x).square().sum(), x)[0]
    with NarrowNorms():
        y = norm(x)
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], expected, rtol=1e-3, atol=1e-4)


def test_gradient_checkpointing() -> None:
    """It runs a layer again in backward, outside of the mode, and compares what is saved."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 13, 1), nn.BatchNorm2d(13)).to(memory_format=CHANNELS_LAST)
    x = torch.randn(16, 3, 12, 12).to(memory_format=CHANNELS_LAST)
    with NarrowNorms():
        loss = checkpoint(network, x, use_reentrant=False).square().sum()
    loss.backward()
    assert network[0].weight.grad is not None


def test_the_loop_uses_them_on_a_cpu_in_channels_last(tmp_path, monkeypatch) -> None:
    used = []
    monkeypatch.setattr(narrow_norm, "group_size", lambda x: used.append(x.shape) or 1)
    for settings, wanted in (((), True), (("run.channels_last=false",), False)):
        used.clear()
        gator.run(short_recipe("train.epochs=0", "prune.epochs=1", *settings), folder=tmp_path / str(wanted))
        assert bool(used) is wanted


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(16, 6, 12, 12),  # not channels_last
        torch.randn(31, 6, 33, 11).to(memory_format=CHANNELS_LAST),  # an odd number of pixels
        torch.randn(4, 6, 8, 8).to(memory_format=CHANNELS_LAST),  # few pixels
        torch.randn(8, 6),
    ],
)
def test_others_are_left_to_torch(x: torch.Tensor) -> None:
    norm = nn.BatchNorm2d(6) if x.ndim == 4 else nn.BatchNorm1d(6)
    with NarrowNorms():
        assert type(norm(x.requires_grad_()).grad_fn).__name__ == "NativeBatchNormBackward0"


def test_only_large_tensors_of_widths_that_torch_is_slow_with(monkeypatch) -> None:
    monkeypatch.undo()  # as it is for users

    def group(channels: int, pixels: int) -> int:
        return group_size(torch.empty(16, channels, 64, pixels // 1024).to(memory_format=CHANNELS_LAST))

    assert group(15, 2**16) > 1
    assert group(16, 2**16) == group(48, 2**16) == group(15, 2**15) == 1


def test_statistics_of_evaluation_are_left_to_torch() -> None:
    norm = nn.BatchNorm2d(6).eval()
    x = torch.randn(16, 6, 12, 12).to(memory_format=CHANNELS_LAST).requires_grad_()
    with NarrowNorms():
        assert type(norm(x).grad_fn).__name__ == "NativeBatchNormBackward0"


def test_the_output_may_be_changed_in_place() -> None:
    """As torchvision's networks do, with ReLU(inplace=True) after every norm."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 13, 3), nn.BatchNorm2d(13), nn.ReLU(inplace=True), nn.Conv2d(13, 5, 1))
    network = network.double().to(memory_format=CHANNELS_LAST)
    x = torch.randn(16, 3, 14, 14, dtype=torch.float64).to(memory_format=CHANNELS_LAST)
    expected = torch.autograd.grad(network(x).square().sum(), list(network.parameters()))
    with NarrowNorms():
        loss = network(x).square().sum()
    for found, wanted in zip(torch.autograd.grad(loss, list(network.parameters())), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
