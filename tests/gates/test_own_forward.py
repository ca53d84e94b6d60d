"""With gates or a mask on, the user's own forward runs: its signature, its keywords, any size, the hooks of others."""

from __future__ import annotations

import copy
import inspect
from itertools import pairwise

import pytest
import torch
from networks import CASES
from small import SmallResNet, close, steady
from support import gap, randomised
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import gator
from gator.graph.reachable import unreachable


class Segmenter(nn.Module):
    """Takes a batch as a dict for its loss, has a keyword nobody traced, and upsamples to the size of a skip."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 4, 1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x, *, scale: float = 1.0, recompute=False):
        if isinstance(x, dict):
            return functional.mse_loss(self.forward(x["image"]), x["target"])
        h = functional.relu(self.norm(self.a(x)))
        low = checkpoint(self.b, h, use_reentrant=False) if recompute else self.b(h)
        return scale * self.c(h + functional.interpolate(low, size=h.shape[2:]))


class Attention(nn.Module):
    """Readers that no layer owns: products, a softmax over channels, a norm written out."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(8, 36), nn.Linear(12, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = q.softmax(-1) @ k.transpose(1, 2)
        if mask is not None:
            weights = weights * mask
        h = self.out(weights @ v)
        h = h / (h.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * self.scale
        return self.head(h)


def segmenter(per="example", share=0.5):
    model = randomised(Segmenter()).train()
    pruner = gator.Pruner(model, torch.randn(2, 3, 16, 16).double(), alpha=1.0, per=per)
    if share:
        close(pruner, share)
    return model, pruner


def test_the_signature_stays_and_keywords_pass_through():
    before = inspect.signature(Segmenter().forward)
    model, _ = segmenter()
    assert type(model) is Segmenter
    assert inspect.signature(model.forward) == before
    model.eval()
    x = torch.randn(2, 3, 16, 16).double()
    assert gap(2 * model(x), model(x, scale=2.0)) <= 1e-12


@pytest.mark.parametrize("per", ["example", "batch"])
def test_other_sizes_and_other_batches_are_right_with_gates_on(per):
    model, pruner = segmenter(per)
    steady(pruner)
    small = pruner.cut(keep_class=True)
    for training in (True, False):
        model.train(training)
        small.train(training)
        for shape in ((2, 3, 16, 16), (3, 3, 32, 24), (1, 3, 18, 10)):
            x = torch.randn(shape).double()
            assert gap(model(x), small(x)) <= 1e-9


def test_a_model_called_with_a_dict_draws_for_the_images_in_it():
    model, pruner = segmenter(share=0.0)
    batch = {"target": torch.randn(5, 4, 16, 16).double(), "image": torch.randn(5, 3, 16, 16).double(), "names": ["a"]}
    loss = model(batch)
    assert pruner._forward.last.shape[0] == 5
    (loss + pruner.loss()).backward()
    assert float(pruner.gates.logits.grad.abs().min()) > 0


def test_gradient_checkpointing_recomputes_with_the_same_draw():
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model, pruner = segmenter(share=0.0)
        with torch.no_grad():
            pruner.gates.logits.fill_(0.5)
        torch.manual_seed(1)
        result = model(torch.randn(4, 3, 8, 8).double(), recompute=recompute)
        result.square().sum().backward()
        found.append((result, [p.grad for p in model.parameters()], pruner.gates.logits.grad))
    assert gap(*found) <= 1e-12


def test_hooks_of_others_run():
    model, _ = segmenter()
    seen = []
    model.b.register_forward_hook(lambda module, args, result: seen.append(("b", result.shape)))
    model.register_forward_hook(lambda module, args, result: 2 * result)
    model.eval()
    x = torch.randn(2, 3, 16, 16).double()
    doubled = model(x)
    assert seen == [("b", (2, 8, 8, 8))]
    assert gap(doubled, 2 * model.forward(x)) <= 1e-12


def test_nothing_is_left_behind():
    model, x = randomised(Attention()), torch.randn(2, 5, 8).double()
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    hooks = [list(module._forward_pre_hooks) for module in model.modules()]
    expected = model(x)
    pruner = gator.Pruner(model, x, alpha=1.0)
    close(pruner, 0.5)
    model(x)
    pruner.detach()
    with gator.masked(model, pruner.graph, pruner.kept):
        model(x)
    for name, module in model.named_modules():
        assert module.__dict__.keys() == before[name].keys()
        assert "forward" not in module.__dict__
    assert [list(module._forward_pre_hooks) for module in model.modules()] == hooks
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("per", ["example", "batch"])
def test_readers_that_no_layer_owns_are_reached(per):
    model, x = randomised(Attention()).train(), torch.randn(2, 5, 8).double()
    pruner = gator.Pruner(model, x, alpha=1.0, per=per)
    assert not pruner.unreachable
    close(pruner, 0.5)
    steady(pruner)
    small = pruner.cut(keep_class=True)
    for y in (x, torch.randn(3, 7, 8).double()):
        mask = torch.rand(len(y), y.shape[1], y.shape[1]).double()
        for training in (True, False):
            model.train(training)
            small.train(training)
            assert gap(model(y), small(y)) <= 1e-9
            assert gap(model(y, mask), small(y, mask=mask)) <= 1e-9


def test_other_calls_than_the_traced_ones_are_refused():
    class Sometimes(Attention):
        def forward(self, x, twice=False):
            q, k, v = self.qkv(x).chunk(3, -1)
            weights = q @ k.transpose(1, 2)
            return self.head(self.out((weights @ weights if twice else weights) @ v))

    model, x = randomised(Sometimes()), torch.randn(2, 5, 8).double()
    graph = gator.trace(model, x)
    with gator.masked(model, graph, {graph.edges[0].name: [0, 1]}):
        model(x)
        with pytest.raises(gator.GatorError, match="calls matmul 3 times in this forward, 2 times in the traced one"):
            model(x, twice=True)


def test_the_fast_path_of_torch_is_not_taken_around_a_mask():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = randomised(nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 3))).eval()
    x = torch.randn(2, 5, 8).double()
    graph = gator.trace(model, x)
    kept = {edge.name: range(edge.width // 2) for edge in graph.edges}
    with gator.masked(model, graph, kept), torch.no_grad():
        found = model(x)
    assert gap(found, gator.cut(model, graph, kept)(x)) <= 1e-9


def test_a_copy_with_gates_draws_its_own():
    model, pruner = segmenter(share=0.0)
    other = copy.deepcopy(model)
    x = torch.randn(4, 3, 8, 8).double()
    model(x)
    drawn = pruner._forward.last
    other(x)
    assert pruner._forward.last is drawn
    with torch.no_grad():
        pruner.gates.logits.fill_(-50.0)
    assert float(model(x).detach().std()) < float(other(x).detach().std())


def test_a_part_of_the_model_can_be_run_alone():
    model, pruner = segmenter(share=0.0)
    h = torch.randn(3, 8, 4, 4).double()
    model.b(h).sum().backward()
    assert pruner._forward.last.shape[0] == 3
    model(torch.randn(2, 3, 8, 8).double())
    with pytest.raises(gator.GatorError, match="a layer sees 3 examples in a forward whose gates are for 2"):
        model.b(h)


def test_a_network_that_runs_as_a_recording_says_so():
    model, x, _ = CASES["lstm_cell"]()
    pruner = gator.Pruner(model, x, alpha=1.0)
    assert pruner.unreachable
    assert "runs as a recording with gates on" in str(pruner)
    edge = next(edge for edge in pruner.graph.edges if "linear at" in pruner.graph.explain(edge.name))
    assert "its own forward gives no access to" in pruner.graph.explain(edge.name)
    assert "recording" not in str(gator.Pruner(SmallResNet(4), torch.randn(2, 1, 8, 8), alpha=1.0))


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 12), nn.Linear(12, 2)

    def forward(self, x):
        return self.b(self.a(x).relu())

    def loss(self, x):
        return self.forward(x).square().sum()


def test_every_forward_draws_however_it_is_called():
    model, x = randomised(WithLoss()).train(), torch.randn(6, 4).double()
    pruner = gator.Pruner(model, x, alpha=1.0)
    with torch.no_grad():
        pruner.gates.logits.fill_(0.0)
        model(x)
    drawn = []
    for run in (model.forward, model.loss, model, model.loss):
        result = run(x)
        result.sum().backward()  # a draw that was used before could not be used again
        drawn.append(pruner._forward.last.detach())
    assert all(not torch.equal(one, other) for one, other in pairwise(drawn))
    assert float(pruner.gates.logits.grad.abs().sum()) > 0


def exact(model, graph, kept, x, tolerance=1e-9):
    """Masked equals cut, output and gradients, in train mode."""
    small = gator.cut(model, graph, kept, keep_class=False).train()
    model.train()
    found = []
    with gator.masked(model, graph, kept):
        result = model(x)
    for each, out in ((model, result), (small, small(x))):
        out.square().sum().backward()
        found.append((out, next(each.parameters()).grad.abs().sum()))
        each.zero_grad()
    assert gap(*found) <= tolerance


def test_a_norm_that_two_edges_share_runs_as_a_recording():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 9), nn.Linear(9, 9), nn.Linear(9, 2)
            self.norm = nn.LayerNorm(9, elementwise_affine=False)

        def forward(self, x):
            return self.c(self.norm(self.b(self.norm(self.a(x)).relu())).relu())

    model, x = randomised(Shared()), torch.randn(3, 4).double()
    graph = gator.trace(model, x)
    assert unreachable(graph)
    exact(model, graph, {"a": [0, 2, 3], "b": [1, 4, 8]}, x)


def test_a_layer_gets_all_its_arguments():
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.down = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, 2, 1)
            self.up, self.out = nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1), nn.Conv2d(6, 2, 1)

        def forward(self, x):
            h = self.a(x).relu()
            return self.out(self.up(self.down(h).relu(), output_size=h.shape[2:]).relu() + h)

    for per in ("example", "batch"):
        model = randomised(Up()).train()
        pruner = gator.Pruner(model, torch.randn(2, 3, 16, 16).double(), alpha=1.0, per=per)
        close(pruner, 0.5)
        steady(pruner)
        small = pruner.cut(keep_class=True).train()
        for size in (16, 15):
            x = torch.randn(2, 3, size, size).double()
            assert gap(model(x), small(x)) <= 1e-9


class Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        scale = x.pow(2).mean(-1, keepdim=True).add(1e-3).rsqrt()
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale - x * scale**3 * (grad * x).mean(-1, keepdim=True)


def test_a_function_with_a_backward_of_its_own_runs_as_a_recording():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.b(Normalise.apply(self.a(x)))

    model, x = randomised(Own()), torch.randn(3, 4).double()
    graph = gator.trace(model, x)
    assert unreachable(graph)
    exact(model, graph, {"a": [0, 2, 3]}, x)


class Recomputed(Attention):
    recompute = False

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        return self.head(self.out(checkpoint(mixed, *parts, use_reentrant=True) if self.recompute else mixed(*parts)))


def mixed(q, k, v):
    return q.softmax(-1) @ k.transpose(1, 2) @ v


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_a_part_that_is_recomputed_without_its_module_is_refused_or_recorded():
    model, x = randomised(Recomputed()).train(), torch.randn(2, 5, 8).double()
    pruner = gator.Pruner(model, x, alpha=1.0)
    assert not pruner.unreachable
    model.recompute = True
    with pytest.raises(gator.GatorError, match=r"runs without gradients(.|\n)*Pass a module"):
        model(x)
    pruner.detach()
    assert gator.Pruner(model, x, alpha=1.0).unreachable


def test_a_layer_that_was_not_traced_is_refused():
    class Auxiliary(WithLoss):
        def __init__(self):
            super().__init__()
            self.extra = nn.Linear(12, 3)

        def forward(self, x, extra=False):
            h = self.a(x).relu()
            return (self.b(h), self.extra(h)) if extra else self.b(h)

    model, x = randomised(Auxiliary()), torch.randn(3, 4).double()
    graph = gator.trace(model, x)
    with gator.masked(model, graph, {"a": [0, 1]}):
        model(x)
        with pytest.raises(gator.GatorError, match="extra runs, which the traced forward did not use in eval mode"):
            model.eval()(x, extra=True)


def test_models_that_share_layers_cannot_both_have_a_mask():
    inner = WithLoss().double()
    one, other = nn.Sequential(inner), nn.Sequential(inner)
    x = torch.randn(3, 4).double()
    graph = gator.trace(one, x)
    kept = {graph.edges[0].name: [0, 1]}
    with gator.masked(one, graph, kept), pytest.raises(gator.TraceError, match="gates or a mask on"):
        gator.trace(other, x)
    pruner = gator.Pruner(inner, x, alpha=1.0)
    with pytest.raises(gator.TraceError, match="gates or a mask on"):
        gator.Pruner(one, x, alpha=1.0)
    pruner.detach()


def test_readers_that_write_elsewhere_run_as_a_recording():
    class InPlace(WithLoss):
        def forward(self, x):
            h = self.a(x) + 1.0
            h.cumsum_(-1)
            return self.b(h)

    model, x = randomised(InPlace()), torch.randn(3, 4).double()
    graph = gator.trace(model, x)
    assert unreachable(graph)
    exact(model, graph, {"a": [0, 3, 5]}, x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_network_that_checkpoints_is_traced_as_one_that_does_not(reentrant):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x, recompute=True):
            x = self.a(x).relu()
            return self.c((checkpoint(self.b, x, use_reentrant=reentrant) if recompute else self.b(x)).relu())

    model, x = Net(), torch.randn(2, 6)
    graph, plain = gator.trace(model, x), gator.trace(model, (x, False))
    assert [(edge.name, edge.width) for edge in graph.edges] == [(edge.name, edge.width) for edge in plain.edges]
    kept = {"a": [0, 1, 2], "b": [4, 5]}
    with gator.masked(model, graph, kept), torch.no_grad():
        expected = model(x)
    assert gap(gator.cut(model, graph, kept)(x).detach(), expected) < 1e-5
