"""What a gated convolution computes: exact, no more memory than a plain one, and the user's tensors never touched."""

from __future__ import annotations

import pytest
import torch
from small import SmallResNet, backward
from support import gap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import gator
from gator.gates.gated_conv import closed_channels, conv_of_gated_input, conv_of_gated_weight

PER = ["example", "batch"]


@pytest.fixture
def _large(monkeypatch):
    """Every convolution counts as large."""
    monkeypatch.setattr("gator.gates.gated_conv._SMALL", 0)


class Watch(TorchDispatchMode):
    """Looks at some tensors after every operator, or raises KeyboardInterrupt after one of the operators."""

    def __init__(self, tensors, interrupt_after=None):
        super().__init__()
        self.tensors = list(tensors)
        self.before = [(t.detach().clone(), t._version) for t in self.tensors]
        self.interrupt_after = interrupt_after
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count += 1
        if self.interrupt_after is None:
            assert self.untouched(), f"changed by {func}"
        elif self.count == self.interrupt_after:
            raise KeyboardInterrupt
        return result

    def untouched(self):
        return all(torch.equal(t, held) and t._version == v for t, (held, v) in zip(self.tensors, self.before, strict=True))


def leaves_of(rows, *, groups=1, share=0.05, dtype=torch.float64, channels_last=False):
    """Input, weight, bias and gates of a convolution; a single row of gates is for the weight."""
    x, weight = torch.randn(5, 12, 6, 6, dtype=dtype), torch.randn(8, 12 // groups, 3, 3, dtype=dtype)
    if channels_last:
        x, weight = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight))
    gate = torch.ones(rows, 12 if rows > 1 else 12 // groups, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    gate.view(-1)[torch.randperm(gate.numel())[: round(share * gate.numel())]] = 0
    return [t.requires_grad_() for t in (x, weight, torch.randn(8, dtype=dtype), gate)]


def convolved(x, weight, bias, gate, *, groups=1):
    """The convolution under test."""
    settings = ([2], [1], [1], groups)
    if gate.shape[0] == 1:
        return conv_of_gated_weight(x, weight, bias, gate, *settings)
    return conv_of_gated_input(x, weight, bias, gate, closed_channels(gate), *settings)


def expected_of(x, weight, bias, gate, *, groups=1):
    """The same by way of a product that autograd knows."""
    if gate.shape[0] == 1:
        weight = weight * gate[0][None, :, None, None]
    else:
        x = x * gate.to(x.dtype)[:, :, None, None]
    return functional.conv2d(x, weight, bias, 2, 1, 1, groups)


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bf16_channels_last"])
def test_parameters_are_never_touched(per, low):
    """After every operator of forward and backward, all parameters are bit-equal to before and of the same version."""
    model, x, y = SmallResNet(8).train(), torch.randn(6, 1, 8, 8), torch.randint(0, 10, (6,))
    pruner = gator.Pruner(model, x, alpha=1.0, per=per)
    with torch.no_grad():
        pruner.gates.logits.fill_(2.0)
    if low:
        model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    with Watch([*model.parameters(), x]) as watch, torch.autocast("cpu", torch.bfloat16, enabled=low):
        backward(pruner, x, y)
    assert watch.count > 100
    assert float(pruner._forward.last.detach().min()) == 0


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("share", [0.05, 0.6])
@pytest.mark.parametrize("rows", [1, 5], ids=["weight", "input"])
def test_an_interrupt_leaves_everything_as_it_was(rows, share):
    """Whichever operator it comes after, in forward or backward."""
    leaves = leaves_of(rows, share=share)
    with Watch(leaves) as whole:
        convolved(*leaves).sum().backward()
    for moment in range(1, whole.count + 1):
        leaves = leaves_of(rows, share=share)
        with Watch(leaves, interrupt_after=moment) as watch, pytest.raises(KeyboardInterrupt):
            convolved(*leaves).sum().backward()
        assert watch.untouched()


@pytest.mark.parametrize("small", [0, 1 << 18], ids=["large", "small"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.6])
@pytest.mark.parametrize("rows", [1, 5], ids=["weight", "input"])
def test_a_gated_convolution_is_one_of_a_product(rows, share, groups, channels_last, small, monkeypatch):
    monkeypatch.setattr("gator.gates.gated_conv._SMALL", small)
    leaves = leaves_of(rows, groups=groups, share=share, channels_last=channels_last)
    plain = [t.detach().clone().requires_grad_() for t in leaves]
    found, expected = convolved(*leaves, groups=groups), expected_of(*plain, groups=groups)
    assert (type(found.grad_fn).__name__ == "_GatedConvBackward") is (rows > 1 and not small)
    assert torch.allclose(found, expected, rtol=1e-12)
    slope = torch.randn_like(expected)
    (found * slope).sum().backward()
    (expected * slope).sum().backward()
    for one, other in zip(leaves, plain, strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("share", [0.05, 0.6])
def test_autocast_is_as_for_a_plain_convolution(share):
    leaves = leaves_of(5, dtype=torch.float32, share=share, channels_last=True)
    plain = [t.detach().clone().requires_grad_() for t in leaves]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = convolved(*leaves), expected_of(*plain)
    assert type(found.grad_fn).__name__ == "_GatedConvBackward"
    assert found.dtype == torch.bfloat16
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)
    slope = torch.randn_like(expected)
    (found * slope).sum().backward()
    (expected * slope).sum().backward()
    for one, other in zip(leaves, plain, strict=True):
        assert one.grad.dtype == torch.float32
        assert gap(one.grad, other.grad) < 0.02


@pytest.mark.usefixtures("_large")
def test_only_what_needs_a_gradient_gets_one():
    for wanted in range(4):
        leaves = [t.detach() for t in leaves_of(5)]
        plain = [t.clone() for t in leaves]
        convolved(*(t.requires_grad_(i == wanted) for i, t in enumerate(leaves))).sum().backward()
        expected_of(*(t.requires_grad_(i == wanted) for i, t in enumerate(plain))).sum().backward()
        assert [t.grad is None for t in leaves] == [i != wanted for i in range(4)]
        assert torch.allclose(leaves[wanted].grad, plain[wanted].grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tiny", [0, 1 << 16], ids=["in_rows", "broadcast"])
@pytest.mark.parametrize("shape", [(8, 12, 3, 3), (8, 12, 1, 1), (80, 12, 3, 3)], ids=["3x3", "1x1", "weight_larger_than_x"])
@pytest.mark.parametrize("batched", [True, False])
def test_one_draw_gates_the_smaller_side(shape, tiny, batched, monkeypatch):
    monkeypatch.setattr("gator.gates.gated_conv._TINY", tiny)
    x, gate = torch.randn(5, 12, 6, 6, dtype=torch.float64), torch.ones(1, 12, dtype=torch.float64)
    gate[0, :3] = 0
    leaves = [t.requires_grad_() for t in (x if batched else x[0], torch.randn(shape, dtype=torch.float64), gate)]
    plain = [t.detach().clone().requires_grad_() for t in leaves]
    found = conv_of_gated_weight(*leaves[:2], None, leaves[2], [2], [1], [1], 1)
    expected = functional.conv2d(plain[0], plain[1] * plain[2][0][None, :, None, None], None, 2, 1)
    slope = torch.randn_like(expected)
    (found * slope).sum().backward()
    (expected * slope).sum().backward()
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-12)
    for one, other in zip(leaves, plain, strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def saved_bytes(model, x, low):
    """What autograd keeps for backward, every storage once."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", torch.bfloat16, enabled=low):
        result = model(x)
    assert result.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("logit", [5.0, 0.5], ids=["few_closed", "many_closed"])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bf16_channels_last"])
def test_gates_keep_no_activations_for_backward(per, logit, low):
    model, x = SmallResNet(16).train(), torch.randn(32, 1, 32, 32)
    if low:
        model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    plain = saved_bytes(model, x, low)
    pruner = gator.Pruner(model, x[:2], alpha=1.0, per=per)
    with torch.no_grad():
        pruner.gates.logits.fill_(logit)
    assert saved_bytes(model, x, low) < 1.03 * plain


@pytest.mark.parametrize("settings", [(2, 1), ([2], [1]), (2, "valid"), ((2, 1), (1, 0))])
def test_settings_of_a_functional_convolution_may_be_numbers(settings, monkeypatch):
    monkeypatch.setattr("gator.gates.gated_conv._SMALL", 0)
    x, weight, bias, gate = leaves_of(5)
    found = conv_of_gated_input(x, weight, bias, gate, closed_channels(gate), *settings, 1, 1)
    expected = functional.conv2d(x * gate[:, :, None, None], weight, bias, *settings)
    assert gap(found, expected) < 1e-12
