"""What a gated convolution computes: exact, no more memory than a plain one, and the user's tensors never touched."""

from __future__ import annotations

import pytest
import torch
from small import SmallResNet, backward
from support import gap, randomised
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import gator
from gator.gates.emit_gated import GatedEmitter
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


def convolved(x, weight, bias, gate, *, relu=False, groups=1):
    """The convolution under test."""
    settings = ([2], [1], [1], groups)
    if gate.shape[0] == 1:
        return conv_of_gated_weight(x, weight, bias, gate, *settings)
    return conv_of_gated_input(x, weight, bias, gate, closed_channels(gate), relu, *settings)


def expected_of(x, weight, bias, gate, *, relu=False, groups=1):
    """The same by way of a product that autograd knows."""
    x = torch.relu(x) if relu else x
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
@pytest.mark.parametrize(("rows", "relu"), [(1, False), (5, False), (5, True)], ids=["weight", "input", "relu"])
def test_an_interrupt_leaves_everything_as_it_was(rows, relu, share):
    """Whichever operator it comes after, in forward or backward."""
    leaves = leaves_of(rows, share=share)
    with Watch(leaves) as whole:
        convolved(*leaves, relu=relu).sum().backward()
    for moment in range(1, whole.count + 1):
        leaves = leaves_of(rows, share=share)
        with Watch(leaves, interrupt_after=moment) as watch, pytest.raises(KeyboardInterrupt):
            convolved(*leaves, relu=relu).sum().backward()
        assert watch.untouched()


@pytest.mark.parametrize("small", [0, 1 << 18], ids=["large", "small"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.6])
@pytest.mark.parametrize(("rows", "relu"), [(1, False), (5, False), (5, True)], ids=["weight", "input", "relu"])
def test_a_gated_convolution_is_one_of_a_product(rows, relu, share, groups, channels_last, small, monkeypatch):
    monkeypatch.setattr("gator.gates.gated_conv._SMALL", small)
    leaves = leaves_of(rows, groups=groups, share=share, channels_last=channels_last)
    plain = [t.detach().clone().requires_grad_() for t in leaves]
    found, expected = convolved(*leaves, relu=relu, groups=groups), expected_of(*plain, relu=relu, groups=groups)
    assert (type(found.grad_fn).__name__ == "_GatedConvBackward") is (rows > 1 and not small)
    assert torch.allclose(found, expected, rtol=1e-12)
    slope = torch.randn_like(expected)
    (found * slope).sum().backward()
    (expected * slope).sum().backward()
    for one, other in zip(leaves, plain, strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("share", [0.05, 0.6])
@pytest.mark.parametrize("relu", [False, True])
def test_autocast_is_as_for_a_plain_convolution(relu, share):
    leaves = leaves_of(5, dtype=torch.float32, share=share, channels_last=True)
    plain = [t.detach().clone().requires_grad_() for t in leaves]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = convolved(*leaves, relu=relu), expected_of(*plain, relu=relu)
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
        convolved(*(t.requires_grad_(i == wanted) for i, t in enumerate(leaves)), relu=True).sum().backward()
        expected_of(*(t.requires_grad_(i == wanted) for i, t in enumerate(plain)), relu=True).sum().backward()
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


class ReadTwice(nn.Module):
    """A ReLU whose result, or whose memory, is read by more than one convolution."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.norm, self.second, self.third = (
            nn.Conv2d(2, 6, 1),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 3, 3),
            nn.Conv2d(6, 3, 3),
        )

    def forward(self, x):
        y = self.norm(self.first(x))
        if self.kind == "alone":
            return self.second(torch.relu(y))
        if self.kind == "alone_in_place":
            return self.second(torch.relu_(y))
        if self.kind == "also_before":
            shifted = y + 1.0
            return self.second(torch.relu_(y)) + self.third(shifted)
        if self.kind == "two_convolutions":
            h = torch.relu(y)
            return self.second(h) + self.third(h)
        if self.kind == "returned":
            h = torch.relu(y)
            return self.second(h), h.mean(1)
        h = torch.relu_(y)
        return self.second(h) + self.third(y + h)


ALONE = ["alone", "alone_in_place", "also_before"]


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("kind", [*ALONE, "two_convolutions", "returned", "added_in_place"])
def test_a_relu_is_computed_by_a_convolution_only_if_that_alone_reads_it(kind, monkeypatch):
    """Either way the result and all gradients are those of a ReLU that is computed by itself."""
    x = torch.randn(4, 2, 5, 5).double()
    found = []
    for inside in (True, False):
        if not inside:
            monkeypatch.setattr(GatedEmitter, "_relus_of_convolutions", lambda _: frozenset())
        torch.manual_seed(1)
        model = randomised(ReadTwice(kind)).train()
        pruner = gator.Pruner(model, x, alpha=1.0)
        with torch.no_grad():
            pruner.gates.logits.fill_(1.0)
        torch.manual_seed(2)
        result = model(x)
        sum((part * part).sum() for part in (result if isinstance(result, tuple) else (result,))).backward()
        assert 0 < float(pruner._forward.last.detach().mean()) < 1
        readers = [node for node in pruner._forward._trained.graph.nodes if node.target is conv_of_gated_input]
        assert any(node.args[5] for node in readers) is (inside and kind in ALONE)
        found.append((result, [p.grad for p in model.parameters() if p.grad is not None], pruner.gates.logits.grad))
    assert gap(*found) < 1e-10
