"""Small networks, each with one thing that recording could not follow once: masked equals cut, and what is assumed is said."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from networks import Run, conv
from support import assert_masked_equals_cut, draw, gap, randomised, run
from torch import Tensor, nn
from torch.nn import functional as F

import gator


def x64(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def check(model: nn.Module, inputs: Any, edges: dict[str, int], tolerance: float = 1e-8) -> gator.Hypergraph:
    """The edges and their widths; masked equals cut in both modes; with nothing removed the network is the eager one."""
    model = randomised(model)
    before = copy.deepcopy(model.state_dict())
    graph = gator.trace(model, inputs)
    assert {edge.name: edge.width for edge in graph.edges} == edges
    assert graph.unsupported == ()
    for share in (0.25, 0.5, 0.75):
        kept = draw(graph, share, seed=int(100 * share))
        model.eval()
        small = assert_masked_equals_cut(model, inputs, graph, kept, tolerance)
        for training in (False, True):
            whole = run(model.train(training), inputs)
            model.load_state_dict(before)  # forward may have assigned weights
            with gator.masked(model, graph, {}):
                assert gap(whole, run(model, inputs)) <= tolerance
            with gator.masked(model, graph, kept):
                expected = run(model, inputs)
            assert gap(expected, run(small.train(training), inputs)) <= tolerance
            assert gap(whole, expected) > 1e-3
    return graph


def linears(forward: Any, **parts: Any) -> nn.Module:
    return Run(forward, a=nn.Linear(8, 12), b=nn.Linear(12, 4), **parts)


def test_tokens_that_are_gathered() -> None:
    def forward(m: Any, x: Tensor, index: Tensor) -> Tensor:
        y = m.a(x)
        return m.b(torch.gather(y, 1, index[..., None].expand(-1, -1, y.shape[-1])))

    check(linears(forward), (x64(2, 6, 8), torch.tensor([[0, 4, 4], [5, 1, 2]])), {"a": 12})


@pytest.mark.parametrize(("batch_first", "edges"), [(True, {"a": 4}), (False, {})])
def test_copies_of_an_index_for_every_head(batch_first: bool, edges: dict[str, int]) -> None:
    """Heads and batch in one axis: if the batch is the inner factor, which heads belong together would depend on its size."""

    def forward(m: Any, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        y = m.a(x).view(batch, tokens, 4, 3)
        y = (y.permute(0, 2, 1, 3) if batch_first else y.permute(2, 0, 1, 3)).reshape(4 * batch, tokens, 3)
        index = torch.arange(tokens - 1, -1, -1)[None, :, None].expand(4 * batch, tokens, 3)
        y = torch.gather(y, 1, index)
        y = y @ y.mT @ y
        split = (
            y.view(batch, 4, tokens, 3).permute(0, 2, 1, 3) if batch_first else y.view(4, batch, tokens, 3).permute(1, 2, 0, 3)
        )
        return m.b(split.reshape(batch, tokens, 12))

    model = randomised(linears(forward))
    graph = gator.trace(model, x64(2, 5, 8))
    assert {edge.name: edge.width for edge in graph.edges} == edges
    for kept in ([0], [1, 3], [0, 1]) if edges else ():
        by_hand = copy.deepcopy(model)
        for head in set(range(4)) - set(kept):
            by_hand.b.weight.data[:, 3 * head : 3 * head + 3] = 0
        for batch in (1, 2, 3, 5):
            small, x = gator.cut(model, graph, {"a": kept}, keep_class=False), x64(batch, 5, 8)
            with gator.masked(model, graph, {"a": kept}):
                assert gap(run(by_hand, x), run(model, x)) <= 1e-8
            assert gap(run(by_hand, x), run(small, x)) <= 1e-8


@pytest.mark.parametrize("kind", ["scatter", "index_add", "index_put", "masked"])
def test_tokens_that_are_written_by_index(kind: str) -> None:
    def forward(m: Any, x: Tensor, index: Tensor) -> Tensor:
        y = m.a(x)
        if kind == "scatter":
            y = torch.zeros_like(y).scatter_add(1, index[..., None].repeat(1, 1, y.shape[-1]), y)
        elif kind == "index_add":
            y = y.index_add(1, index[0], y.relu())
        elif kind == "index_put":
            y = y.clone()
            y[index > 2] = m.token
        else:
            y = y.clone()
            y[(index > 2)[..., None].repeat(1, 1, y.shape[-1])] = 0.5
        return m.b(y)

    index = torch.tensor([[0, 4, 4, 1, 2, 0], [5, 1, 2, 3, 3, 0]])
    check(linears(forward, token=nn.Parameter(torch.randn(12))), (x64(2, 6, 8), index), {"a": 12})


def test_fourier_transforms_over_space() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(m.a(x))
        spectrum = torch.complex(spectrum.real.relu(), spectrum.imag) * torch.view_as_complex(m.scale)[:, None, None]
        return m.b(torch.fft.irfft2(spectrum, s=x.shape[-2:]))

    model = Run(forward, a=conv(3, 10), b=conv(10, 4), scale=nn.Parameter(torch.randn(10, 2)))
    check(model, x64(2, 3, 8, 8), {"a": 10})


def test_repeated_keys_with_a_given_size() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        query, key, value = (layer(x).unflatten(-1, (-1, 4)) for layer in (m.q, m.k, m.v))
        key, value = (part.repeat_interleave(2, 2, output_size=6) for part in (key, value))
        out = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (query, key, value)))
        return m.o(out.transpose(1, 2).flatten(2))

    parts = {"q": nn.Linear(8, 24), "k": nn.Linear(8, 12), "v": nn.Linear(8, 12), "o": nn.Linear(24, 4)}
    check(Run(forward, **parts), x64(2, 5, 8), {"q": 3})


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_without_channels_stay() -> None:
    layers = (nn.Linear(4, 8), nn.Linear(8, 0), nn.Linear(0, 8), nn.ReLU(), nn.Linear(8, 4))
    model, x = randomised(nn.Sequential(*layers)), x64(2, 4)
    graph = gator.trace(model, x)
    assert [edge.name for edge in graph.edges] == ["0", "2"]
    assert_masked_equals_cut(model, x, graph, {"0": range(3), "2": range(5)})
    beside = randomised(
        Run(
            lambda m, x: m.b(m.a(x).relu() + m.wide(x)) + m.s(x),
            a=layers[0],
            b=layers[4],
            wide=nn.Linear(4, 8),
            s=nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 4)),
        )
    )
    assert_masked_equals_cut(beside, x, graph := gator.trace(beside, x), draw(graph, 0.5))


class Folding(nn.Module):
    """Two convolutions in training; in evaluation one, whose weights are computed from theirs."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inputs, inner, 1), nn.Conv2d(inner, outputs, 1)
        self.both = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.two(self.one(x))
        first, second = (layer.weight.data[:, :, 0, 0] for layer in (self.one, self.two))
        self.both.weight.data = (second @ first)[:, :, None, None]
        self.both.bias.data = second @ self.one.bias.data + self.two.bias.data
        return self.both(x)


def test_weights_that_forward_assigns(tmp_path: Any) -> None:
    model, x = nn.Sequential(Folding(3, 8, 6), nn.ReLU(), Folding(6, 12, 4)), x64(2, 3, 8, 8)
    graph = check(model, x, {"0.one": 8, "0.two": 6, "2.one": 12})
    both = model[0].both.weight.clone()
    gator.trace(model.eval(), x)
    assert torch.equal(both, model[0].both.weight)
    for form in (None, False):
        small = gator.cut(model, graph, draw(graph, 0.5), keep_class=form)
        gator.save(small, tmp_path / "small.safetensors")
        assert gap(run(small, x), run(gator.load(tmp_path / "small.safetensors", copy.deepcopy(model)), x)) == 0


def test_data_of_another_shape_cannot_be_assigned() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        m.b.weight.data = m.a.weight.T[:, :4]
        return m.b(m.a(x))

    with pytest.raises(gator.TraceError, match=r"data of shape \(8, 4\) is assigned to a tensor of shape \(4, 12\)"):
        gator.trace(linears(forward), torch.randn(2, 8))


class ChannelNorm(torch.autograd.Function):
    """A norm over channels with a backward of its own, which uses an intermediate result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        size = (x.square().mean(1, keepdim=True) + 1e-6).sqrt()
        normal = x / size
        ctx.save_for_backward(normal, size, scale)
        return normal * scale[:, None, None]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        normal, size, scale = ctx.saved_tensors
        inner = gradient * scale[:, None, None]
        return (inner - normal * (inner * normal).mean(1, keepdim=True)) / size, (gradient * normal).sum((0, 2, 3))


class Reversible(torch.autograd.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1); the inputs are computed again from the outputs in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: nn.Module, g: nn.Module, *_: Tensor) -> Tensor:
        one, two = x.chunk(2, 1)
        with torch.no_grad():
            one = one + f(two)
            two = two + g(one)
        ctx.f, ctx.g = f, g
        ctx.save_for_backward(one.detach(), two.detach())
        return torch.cat([one, two], 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        one, two = (part.detach().requires_grad_() for part in ctx.saved_tensors)
        first, second = gradient.chunk(2, 1)
        own = [*ctx.f.parameters()], [*ctx.g.parameters()]
        with torch.enable_grad():
            inner, *of_g = torch.autograd.grad(ctx.g(one), (one, *own[1]), second)
            first = first + inner
            two = (two - ctx.g(one)).detach().requires_grad_()
            inner, *of_f = torch.autograd.grad(ctx.f(two), (two, *own[0]), first)
        return torch.cat([first, second + inner], 1), None, None, *of_f, *of_g


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_functions_with_a_backward_of_their_own() -> None:
    def reversible(m: Any, x: Tensor) -> Tensor:
        return m.d(Reversible.apply(m.c(x), m.f, m.g, *m.f.parameters(), *m.g.parameters()))

    norm = Run(lambda m, x: m.d(ChannelNorm.apply(m.c(x), m.w)), c=conv(3, 8), w=nn.Parameter(torch.ones(8)), d=conv(8, 4))
    parts = {name: nn.Sequential(conv(4, 6), nn.GELU(), conv(6, 4)) for name in ("f", "g")}
    blocks = Run(reversible, c=conv(3, 8), d=conv(8, 4), **parts)
    x = x64(2, 3, 8, 8)
    for model, edges in ((norm, {"c": 8}), (blocks, {"c": 4, "c#2": 4, "f.0": 6, "g.0": 6})):
        graph = check(model, x, edges)
        expected = gradients(model.train(), x)
        with gator.masked(model, graph, {}):
            assert gap(expected, gradients(model, x)) <= 1e-8


def test_tensors_in_messages() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        count = (x > 0).sum()
        message = f"{count} of {x.numel()}, {count:d}, {x!s}, {[x]!r}"
        assert message
        return m.b(m.a(x).relu())

    check(linears(forward), x64(2, 8), {"a": 12})


def test_numbers_of_a_known_tensor() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        sizes = torch.tensor([5, 7]).tolist()
        one, two = m.a(x).split(sizes, -1)
        return m.b(torch.cat([two, one], -1))

    check(linears(forward), x64(2, 8), {"a": 12})
    with pytest.raises(gator.TraceError, match="reads the values of a tensor"):
        gator.trace(linears(lambda m, x: m.b(m.a(x)) * len(x.long().tolist())), torch.randn(2, 8))


class Dropped(nn.Module):
    """A residual layer that a random draw leaves out; `kept` turns the comparison round."""

    def __init__(self, probability: float, *, kept: bool = False) -> None:
        super().__init__()
        self.a, self.layer, self.b = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.probability, self.kept = probability, kept

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if self.kept:
            runs = not self.training or torch.rand(1) < 1 - self.probability
        else:
            runs = not (self.training and torch.rand([]) < self.probability)
        return self.b(y + self.layer(y).relu() if runs else y)


class Rows(nn.Module):
    """Drops a branch for some examples, by a mask that is drawn and scaled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.layer, self.b = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        noise = torch.empty([len(x), 1], dtype=x.dtype).bernoulli_(0.8).div_(0.8) if self.training else 1.0
        return self.b(y + noise * self.layer(y).relu())


def test_a_mask_that_is_drawn_and_scaled_in_place_leaves_the_batch_size_free() -> None:
    graph = gator.trace(Rows().double(), x64(2, 8))
    assert {edge.name: edge.width for edge in graph.edges} == {"a": 12}
    assert (graph.train.program.batch, graph.eval.program.batch) == (2, 2)


def test_a_network_bound_to_its_batch_size_in_one_mode_is_counted_for_that() -> None:
    """In train mode the batch is squared, so that the recordings at two batch sizes cannot be merged."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.b(m.a(x).relu())
        return y * len(x) ** 2 if m.training else y

    graph = gator.trace(linears(forward), x64(1, 8).float())
    assert graph.inputs.batch is None
    assert graph.macs == 8 * 12 + 12 * 4


@pytest.mark.parametrize("kept", [False, True])
def test_layers_that_are_never_dropped_need_no_note(kept: bool) -> None:
    assert check(Dropped(0.0, kept=kept), x64(2, 8), {"a": 12}).notes == ()


@pytest.mark.parametrize("kept", [False, True])
def test_layers_that_are_dropped_at_random_are_kept(kept: bool) -> None:
    model, x = randomised(Dropped(0.3, kept=kept)), x64(2, 8)
    state = torch.get_rng_state()
    graph = gator.trace(model, x)
    assert torch.equal(state, torch.get_rng_state())
    (note,) = graph.notes
    assert "in train mode a random draw leaves out layer at" in note
    assert "test_refused_before.py" in note
    assert f"note: {note}" in str(graph)
    assert gator.SavedGraph.from_json(graph.to_json()).notes == graph.notes
    kept = draw(graph, 0.5)
    small = gator.cut(model, graph, kept).train()
    assert isinstance(small, Dropped)  # the class goes on dropping the layer, and so does the masked network
    with gator.masked(model.train(), graph, kept):
        masked = {round(run(model, x).sum().item(), 9) for _ in range(40)}
    assert len(masked) == 2
    assert {round(run(small, x).sum().item(), 9) for _ in range(40)} == masked
    recorded = gator.cut(model.eval(), graph, kept, keep_class=False).train()
    assert round(run(recorded, x).sum().item(), 9) in masked


def test_other_decisions_by_a_draw_are_refused() -> None:
    def either(m: Any, x: Tensor) -> Tensor:
        return m.b(m.one(x) if torch.rand(1) < 0.5 else m.two(x))

    def flipped(m: Any, x: Tensor) -> Tensor:
        return m.b(m.one(x.flip(1) if m.training and torch.rand(()) < 0.5 else x))

    parts = {"one": nn.Linear(8, 12), "two": nn.Linear(8, 12), "b": nn.Linear(12, 4)}
    for forward in (either, flipped):
        with pytest.raises(gator.TraceError, match=r"a random draw decides[\s\S]*test_refused_before[\s\S]*probability to 0"):
            gator.trace(Run(forward, **parts), torch.randn(2, 8))
    scaled = Run(lambda m, x: m.b(m.one(x)) * (torch.rand(1).item() if m.training else 1), **parts)
    with pytest.raises(gator.TraceError, match=r"reads a random draw as a number[\s\S]*in train mode only"):
        gator.trace(scaled, torch.randn(2, 8))


def test_numbers_drawn_outside_torch_are_named_and_the_generators_restored() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(m.a(x)) * (random.random() + np.random.rand() if m.training else 1)  # noqa: NPY002

    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    expected = random.random(), np.random.rand()  # noqa: NPY002
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    graph = gator.trace(linears(forward), torch.randn(2, 8))
    assert (random.random(), np.random.rand()) == expected  # noqa: NPY002
    (note,) = graph.notes
    assert "in train mode the network draws random numbers with Python's random or with NumPy" in note


def test_all_channels_are_all_that_are_left() -> None:
    check(linears(lambda m, x: m.b(m.a(x) * (m.a(x) > -0.5).all(-1, keepdim=True).logical_not())), x64(6, 8), {"a": 12})


def test_activations_are_taken_to_be_finite() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        if not torch.isfinite(y).all() or torch.isnan(y).any() | torch.isinf(y).any():
            y = y.clamp(-1, 1)
        return m.b(y.relu())

    (note,) = check(linears(forward), x64(2, 8), {"a": 12}).notes
    assert "activations are taken to be finite where the network checks it" in note


def test_masks_may_hold_infinities() -> None:
    def forward(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        bias = torch.zeros(2, 8).masked_fill(mask, -math.inf)
        return m.b(m.a(x.relu() if torch.isinf(bias).any() else x))

    with pytest.raises(gator.TraceError, match="reads the values of a tensor"):
        gator.trace(linears(forward), (torch.randn(2, 8), torch.zeros(2, 8, dtype=torch.bool)))


def test_checks_are_taken_to_pass() -> None:
    def forward(m: Any, x: Tensor, index: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            torch._check_tensor_all(index < 6)
        elif index.max() > 5:
            raise ValueError(f"{index} is out of range")
        return m.b(m.a(x[:, index]).relu())

    index = torch.tensor([1, 5])
    assert check(linears(forward), (x64(2, 6, 8), index), {"a": 12}).notes == ()
    assert not torch.compiler.is_exporting()
    assert not torch.compiler.is_compiling()


def test_a_faster_path_without_padding_is_not_taken() -> None:
    def forward(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        y = m.a(x)
        if torch.compiler.is_exporting() or not mask.all():
            y = y * mask[..., None]
        return m.b(y.sum(1))

    model = randomised(linears(forward))
    x, mask = x64(2, 6, 8), torch.ones(2, 6, dtype=torch.bool)
    graph = gator.trace(model, (x, mask))
    padded = torch.arange(6) < torch.tensor([[3], [5]])
    for other in (mask, padded, padded.flip(1)):
        assert_masked_equals_cut(model, (x, other), graph, {"a": range(5)})
        expected = run(model, (x, other))
        with gator.masked(model, graph, {}):
            assert gap(expected, run(model, (x, other))) <= 1e-12


@dataclass
class Result:
    scores: Tensor
    states: list[Tensor]
    name: str = "result"


class Cache:
    """A plain object with tensors inside containers and inside another object."""

    def __init__(self, layers: dict[str, Tensor], result: Result) -> None:
        self.layers, self.result, self.length, self.dtype = layers, result, 3, result.scores.dtype


def returning(m: Any, x: Tensor) -> tuple[Tensor, Cache]:
    y = m.a(x)
    z = m.c(y.relu())
    return m.b(z), Cache({"y": y}, Result(m.b(z).relu(), [z]))


def test_objects_that_hold_tensors_are_outputs() -> None:
    model, x = randomised(linears(returning, c=nn.Linear(12, 12))), x64(2, 8)
    graph = gator.trace(model, x)
    assert graph.edges == ()
    with gator.masked(model, graph, {}):
        out, cache = run(model, x)
    expected, other = run(model, x)
    assert type(cache) is Cache
    assert type(cache.result) is Result
    assert (cache.length, cache.dtype, cache.result.name) == (3, torch.float64, "result")
    pairs = ((expected, out), (other.layers, cache.layers), (other.result.states, cache.result.states))
    for one, two in pairs:
        assert gap(one, two) <= 1e-12


def test_only_the_outputs_that_are_named_fix_channels() -> None:
    model, x = randomised(linears(returning, c=nn.Linear(12, 12))), x64(2, 8)
    graph = gator.trace(model, x, outputs=["0", "1.layers"])
    assert {edge.name: edge.width for edge in graph.edges} == {"c": 12}
    graph = gator.trace(model, x, outputs=["0"])
    assert {edge.name: edge.width for edge in graph.edges} == {"a": 12, "c": 12}
    kept = draw(graph, 0.5)
    with gator.masked(model, graph, kept):
        expected, cache = run(model, x)
    assert cache.result.states[0].shape == (2, 12)
    for form in (None, False):
        small = gator.cut(model, graph, kept, keep_class=form)
        out, cache = run(small, x)
        assert gap(expected, out) <= 1e-8
        assert form is False or cache.layers["y"].shape == (2, 6)
        plan = gator.CutPlan.from_json(gator.plan(small).to_json())
        assert gap(expected, run(gator.apply(plan, model), x)[0]) <= 1e-8
    again = gator.SavedGraph.from_json(graph.to_json())
    assert gap(expected, run(gator.cut(model, again, kept), x)[0]) <= 1e-8


@pytest.mark.parametrize(
    ("outputs", "words"),
    [(["2"], "outputs= names '2', which the network does not return; it returns 0, 1"), ("0", r"expected a list of names")],
)
def test_outputs_that_do_not_exist(outputs: Any, words: str) -> None:
    with pytest.raises(gator.TraceError, match=words):
        gator.trace(linears(returning, c=nn.Linear(12, 12)), torch.randn(2, 8), outputs=outputs)


def test_norms_in_single_precision_inside_a_network_in_double() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        single = y.float()
        single = single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + 1e-6)
        return m.b(single.to(y.dtype).relu())

    model = randomised(linears(forward))
    graph = gator.trace(model, x64(3, 8))
    for seed in range(5):
        assert_masked_equals_cut(model, x64(3, 8), graph, draw(graph, 0.5, seed), tolerance=1e-5)


def test_a_wrong_cut_is_not_taken_for_rounding() -> None:
    """The scale depends on the width, so the class computes something else; by little, compared with float32."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.a(x).float().to(x.dtype)
        return m.b(y) * (1 + 1e-4 * y.shape[-1])

    model = randomised(linears(forward))
    graph = gator.trace(model, x64(3, 8))
    with pytest.raises(gator.CutError, match="does not work after this cut"):
        gator.cut(model, graph, {"a": range(5)}, keep_class=True)


def test_a_layer_that_depends_on_the_batch_size_is_not_merged() -> None:
    """Two recordings with equal calls on other weights are not one program."""
    model = randomised(linears(lambda m, x: m.b((m.a if len(x) < 4 else m.c)(x).relu()), c=nn.Linear(8, 12)))
    x = x64(2, 8)
    graph = gator.trace(model, x)
    assert graph.inputs.batch is None
    small = gator.cut(model, graph, {}, keep_class=False)
    with pytest.raises(gator.GatorError, match=r"shape \(2, 8\)"):
        small(x64(6, 8))
