"""One step of the gates: eq. 8, and everything a training loop may do around it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from small import SmallResNet, backward, steady
from torch.nn import functional

import gator
from gator.gates.mean_gradient import mean_gradient_


def pair(per="example", dtype=torch.float64, **settings):
    torch.manual_seed(0)
    model = SmallResNet(6).to(dtype).train()
    x, y = torch.randn(6, 1, 8, 8, dtype=dtype), torch.randint(0, 10, (6,))
    return gator.Pruner(model, x, per=per, **settings), x, y


@pytest.mark.parametrize("per", ["example", "batch"])
@pytest.mark.parametrize("cost", ["flops", "memory"])
def test_equation_9(per, cost, monkeypatch):
    """The update of every logit is gamma * lr * dg/dtheta * (alpha + dL/dg / lambda_hat), worked out on its own."""
    alpha, gamma, lr = 0.7, 0.2, 0.1
    pruner, x, y = pair(per, cost=cost, alpha=alpha, gamma=gamma, momentum=0.0)
    gates, model = pruner.gates, pruner.model
    with torch.no_grad():
        gates.logits.copy_(torch.randn(len(gates)).double() + 2)
    noise = torch.randn(6 if per == "example" else 1, len(gates), dtype=torch.float64)
    gates.noise = lambda rows: noise
    before = gates.logits.detach().clone()

    # dL/dg at this draw, with the gates as leaves.
    drawn = ((before + noise) >= 0).double().requires_grad_()
    with monkeypatch.context() as patch:
        patch.setattr(gates, "of_forward", lambda rows, examples: drawn)
        functional.cross_entropy(model(x), y).backward()
    soft = torch.sigmoid(before + noise)
    slope = soft * (1 - soft)
    prices = _lambda_by_hand(pruner.graph, cost)
    widths = np.array([edge.width for edge in pruner.graph.edges])
    hat = torch.as_tensor((prices / (prices * widths).sum())[gates.edge_of])
    rows = len(noise)
    expected = gamma * lr * (slope * (alpha / rows + drawn.grad / hat)).sum(0)
    model.zero_grad()

    backward(pruner, x, y)
    pruner.step(lr=lr)
    after = gates.logits.detach()
    assert torch.allclose(before - after, expected, rtol=1e-6, atol=1e-12)
    assert float((before - after).abs().max()) > 1e-4


def _lambda_by_hand(graph, cost):
    """lambda of eq. 5 and 6 for SmallResNet(6): weights (and the norms beside them), times pixels for FLOPs."""
    sizes = {"stem": (1, 6, 9, 64)}  # into, out, kernel, pixels
    for i, (into, out, pixels) in enumerate([(6, 6, 64), (6, 6, 64), (6, 12, 16), (12, 12, 16)]):
        sizes[f"blocks.{i}.conv1"] = (into, out, 9, pixels)
        sizes[f"blocks.{i}.conv2"] = (out, out, 9, pixels)
    sizes["blocks.2.shortcut"] = (6, 12, 1, 16)
    sizes["head"] = (12, 10, 1, 1)
    result = []
    for edge in graph.edges:
        total = 0.0
        for name, (into, out, kernel, pixels) in sizes.items():
            writes, reads = name in edge.producers, name in edge.consumers
            per_weight = 6 * pixels if cost == "flops" else 8  # six examples; eight bytes
            total += per_weight * kernel * ((into if writes else 0) + (out if reads else 0))
            if cost == "memory" and writes:
                has_bias = name in ("stem", "blocks.2.shortcut", "head")
                total += 8 * (has_bias + (0 if has_bias else 4))  # a bias, or the four numbers of a batch norm
        result.append(total)
    return np.array(result)


def test_a_cost_of_zero_leaves_an_edge_alone():
    class OnlyTheStem:
        def on(self, model, graph):
            return self

        def total(self, widths):
            return float(widths[0])

        def per_channel(self, widths):
            return np.array([1.0] + [0.0] * (len(widths) - 1))

    pruner, x, y = pair(cost=OnlyTheStem(), alpha=5.0)
    backward(pruner, x, y)
    before = pruner.gates.logits.detach().clone()
    pruner.step(lr=0.1)
    moved = (pruner.gates.logits.detach() - before).abs() > 0
    assert moved[pruner.gates.of_edge(0)].all()
    assert not moved[pruner.gates.of_edge(0).stop :].any()
    assert torch.isfinite(pruner.gates.logits).all()


def test_weight_decay_is_off_unless_asked_for():
    moved = []
    for decay in (0.0, 1e-2):
        pruner, x, y = pair(alpha=0.0, weight_decay=decay, momentum=0.0)
        pruner.gates.noise = lambda rows, p=pruner: torch.full((rows, len(p.gates)), 500.0, dtype=torch.float64)
        backward(pruner, x, y)  # so far from the threshold that no other gradient is left
        before = pruner.gates.logits.detach().clone()
        pruner.step(lr=0.1)
        moved.append(float((before - pruner.gates.logits.detach()).abs().max()))
    assert moved[0] < 1e-12
    assert moved[1] > 1e-6


def test_accumulated_micro_batches_all_count():
    """Two halves, each with half of the loss, move the gates as the mean of both does."""
    pruner, x, y = pair("batch", alpha=0.5, momentum=0.0)
    noise = torch.randn(2, 1, len(pruner.gates), dtype=torch.float64) - 4
    gradients = []
    for part in (slice(0, 3), slice(3, 6)):
        pruner.gates.noise = lambda rows, n=noise[0 if part.start == 0 else 1]: n
        backward(pruner, x[part], y[part])
        gradients.append(mean_gradient_(pruner.gates, pruner._scale))
    for part in (slice(0, 3), slice(3, 6)):
        pruner.gates.noise = lambda rows, n=noise[0 if part.start == 0 else 1]: n
        loss = functional.cross_entropy(pruner.model(x[part]), y[part]) + pruner.loss()
        (loss / 2).backward()
    both = mean_gradient_(pruner.gates, pruner._scale)
    assert torch.allclose(both, (gradients[0] + gradients[1]) / 2, rtol=1e-9)
    assert not torch.allclose(gradients[0], gradients[1])


def test_a_gradient_scaler_does_not_change_the_gates():
    logits = []
    for scale in (1.0, 1024.0):
        pruner, x, y = pair(alpha=0.5)
        steady(pruner)
        pruner.gates.noise = lambda rows, p=pruner: torch.linspace(-6, 6, rows * len(p.gates)).double().reshape(rows, -1)
        optimizer = torch.optim.SGD(pruner.model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale > 1)
        for _ in range(3):
            loss = functional.cross_entropy(pruner.model(x), y) + pruner.loss()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            pruner.step(lr=0.1)
        logits.append(pruner.gates.logits.detach().clone())
    assert torch.allclose(*logits, rtol=1e-9)


def test_an_overflow_skips_the_step():
    pruner, x, y = pair(alpha=0.5)
    before = pruner.gates.logits.detach().clone()
    loss = functional.cross_entropy(pruner.model(x), y) + pruner.loss()
    (loss * float("inf")).backward()
    pruner.step(lr=0.1)
    assert torch.equal(pruner.gates.logits.detach(), before)
    assert pruner.steps_skipped == 1


@pytest.mark.trains
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("per", ["example", "batch"])
def test_the_users_loop_stays_as_it_is(make, per):
    """Any optimizer, a scheduler, clipping and autocast, around the same two calls."""
    torch.manual_seed(0)
    model = SmallResNet(8).train()
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))
    pruner = gator.Pruner(model, x, target=0.6, steps=30, per=per)
    optimizer = make(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    for _ in range(30):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x), y) + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pruner.step(lr=scheduler.get_last_lr()[0])
        scheduler.step()
    assert pruner.finished
    assert pruner.cost_left <= pruner.target
    small = pruner.cut()
    assert gator.measure(small, x).macs == pruner.cost_left


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile looks at that of the draw, which is an input
def test_a_compiled_model_has_gates_too():
    torch.manual_seed(0)
    model = SmallResNet(4).train()
    x, y = torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,))
    pruner = gator.Pruner(model, x, alpha=2.0, per="batch")
    fast = torch.compile(model, backend="aot_eager", fullgraph=True)
    before = pruner.gates.logits.detach().clone()
    for _ in range(2):
        loss = functional.cross_entropy(fast(x), y) + pruner.loss()
        loss.backward()
        pruner.step(lr=0.1)
    assert float((before - pruner.gates.logits.detach()).abs().min()) > 0


def test_the_loss_is_one_at_the_start_and_counts_what_is_open():
    pruner, x, _ = pair(alpha=1.0)
    steady(pruner)
    pruner.model(x)
    assert float(pruner.loss().detach()) == pytest.approx(1.0, rel=1e-12)
    with torch.no_grad():
        pruner.gates.logits.fill_(0.0)
    assert pruner.computational_loss() == pytest.approx(0.5, rel=1e-12)


def test_mistakes_are_explained():
    x = torch.randn(2, 1, 8, 8)
    model = SmallResNet(4)

    def fails(words, **settings):
        with pytest.raises(gator.GatorError, match=words):
            gator.Pruner(model, settings.pop("inputs", x), **settings)
        assert "forward" not in model.__dict__

    fails("one of them, not both")
    fails("one of them, not both", alpha=1.0, target=0.5, steps=10)
    fails("go together", target=0.5)
    fails("1 or more", target=0.5, steps=0)
    fails("zero or more", alpha=-1.0)
    fails("more than zero", alpha=1.0, gamma=0.0)
    fails("less than 1", alpha=1.0, momentum=1.0)
    fails('"example" or "batch"', alpha=1.0, per="sample")
    fails("expected 'flops', 'memory'", alpha=1.0, cost="flopz")
    fails("without on", alpha=1.0, cost=3)
    fails("did you mean", alpha=1.0, keep=["blocks.0.conv11"])
    fails("whole number", alpha=1.0, round_to=0)
    fails("up to 1", target=1.5, steps=10)
    fails("cannot be reached", target=0.00001, steps=10)
    fails("counted in MACs", target="4 MB", steps=10)
    fails("cannot be read", target="4 parsecs", steps=10)
    fails("pass example_inputs, or graph", alpha=1.0, inputs=None)

    pruner = gator.Pruner(model, x, alpha=1.0)
    with pytest.raises(gator.GatorError, match="needs a forward in train mode"):
        pruner.loss()
    with pytest.raises(gator.GatorError, match="add it to the loss"):
        pruner.step(lr=0.1)
    with pytest.raises(gator.GatorError, match="has gates or a mask on"):
        gator.Pruner(model, x, alpha=1.0)
    with pytest.raises(gator.GatorError, match="there is no target to meet"):
        pruner.project()
    with pytest.raises(gator.GatorError, match="zero or more"):
        pruner.step(lr=-1)


def test_attaching_and_detaching_leave_no_trace():
    model = SmallResNet(4).eval()
    x = torch.randn(2, 1, 8, 8)
    plain = model(x)
    before, keys, names = copy.deepcopy(model.state_dict()), list(model.__dict__), [n for n, _ in model.named_parameters()]
    hooks = [dict(m._forward_hooks) for m in model.modules()]
    pruner = gator.Pruner(model, x, alpha=1.0)
    assert list(model.state_dict()) == list(before)
    assert [n for n, _ in model.named_parameters()] == names
    assert torch.equal(model(x), plain)
    pruner.detach()
    assert list(model.__dict__) == keys
    assert [dict(m._forward_hooks) for m in model.modules()] == hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert torch.equal(model(x), plain)
