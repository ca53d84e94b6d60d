"""A cut network trains, exports and can be cut again; wrong cuts are refused; an independent check without labels."""

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from networks import CASES, Run, conv
from support import assert_masked_equals_cut, doubled, draw, gap, randomised, run
from torch import nn
from torch.nn import functional as F

import gator
from gator import zoo
from gator.surgery import cut as cutting


def small_networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    resnet = zoo.build("cifar:resnet20")
    token, image, _ = CASES["class_token_and_positions"]()
    unet, picture, _ = CASES["unet"]()
    return {"resnet20": (resnet.model, torch.randn(2, 3, 32, 32)), "vit": (token, image), "unet": (unet, picture)}


@pytest.mark.parametrize("form", [None, False])
@pytest.mark.parametrize("name", ["resnet20", "vit", "unet"])
def test_a_cut_network_works_like_any_other_module(name: str, form: bool | None) -> None:
    """It trains, runs at another batch size, can be deep-copied, exported, compiled, traced and cut again."""
    model, x = small_networks()[name]
    model, x = randomised(model), x.double()
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, draw(graph, 0.5), keep_class=form)
    assert set(small.state_dict()) == set(model.state_dict())

    small.train()
    optimizer = torch.optim.SGD(small.parameters(), lr=1e-3, momentum=0.9)
    losses = []
    for _ in range(4):
        loss = (small(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for p in small.parameters())
    small.eval()

    seven = torch.randn(7, *x.shape[1:], dtype=x.dtype)
    assert small(seven).shape[0] == 7
    twin = copy.deepcopy(small)
    assert gap(small(x), twin(x)) == 0
    with torch.no_grad():
        next(twin.parameters()).add_(1)
    assert gap(small(x), twin(x)) > 0

    again = gator.trace(small, x)
    smaller = assert_masked_equals_cut(small, x, again, draw(again, 0.5))
    assert gator.measure(smaller, x).params < gator.measure(small, x).params

    batch = torch.export.Dim.DYNAMIC
    shapes = (({0: batch},),) if isinstance(model, Run) else ({0: batch},)  # Run takes *args, the others name their input
    exported = torch.export.export(small, (x,), dynamic_shapes=shapes, strict=False).module()
    assert gap(small(seven), exported(seven)) <= 1e-10
    compiled = torch.compile(small, backend="aot_eager")
    assert gap(small(x), compiled(x)) <= 1e-10


@pytest.mark.parametrize("name", ["resnet20", "vit"])
def test_onnx_runtime_computes_the_same(name: str, tmp_path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, x = small_networks()[name]
    graph = gator.trace(model.eval(), x)
    small = gator.cut(model, graph, draw(graph, 0.5), keep_class=False)
    file = tmp_path / "small.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own dependencies
        torch.onnx.export(small, (x,), str(file), dynamo=True, verbose=False, external_data=False)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert gap(run(small, x), torch.from_numpy(found)) <= 1e-4


def test_the_class_is_kept_where_it_works_after_the_cut() -> None:
    model, x, _ = CASES["unet"]()
    graph = gator.trace(model, x)
    assert type(gator.cut(model, graph, draw(graph, 0.5))) is type(model)
    assert isinstance(gator.cut(model, graph, draw(graph, 0.5), keep_class=False), torch.fx.GraphModule)
    model, x, _ = CASES["literal_view"]()
    graph = gator.trace(model, x)
    assert isinstance(gator.cut(model, graph, draw(graph, 0.5)), torch.fx.GraphModule)
    with pytest.raises(gator.CutError, match=r"the class Run does not work after this cut: [\s\S]*keep_class at None"):
        gator.cut(model, graph, draw(graph, 0.5), keep_class=True)


def test_a_cut_for_measurement_is_a_graph_and_is_not_checked(monkeypatch) -> None:
    model, x, _ = CASES["unet"]()
    graph = gator.trace(model, x)
    kept = draw(graph, 0.5)
    expected = run(gator.cut(model, graph, kept, keep_class=False).eval(), x)
    monkeypatch.setattr(cutting, "check_network", None)  # not callable
    small = cutting.cut_for_measurement(model, graph, kept)
    assert isinstance(small, torch.fx.GraphModule)
    assert gap(expected, run(small.eval(), x)) == 0


def test_masks_and_indices_mean_the_same_and_the_model_is_untouched() -> None:
    model, x, _ = CASES["called_twice"]()
    model.eval()
    graph = gator.trace(model, x)
    name, width = graph.edges[0].name, graph.edges[0].width
    before = copy.deepcopy(model.state_dict())
    mask = torch.zeros(width, dtype=torch.bool)
    mask[[1, 3, 4]] = True
    outputs = [
        run(gator.cut(model, graph, {name: k}), x) for k in ([4, 1, 3], (1, 3, 4), np.array([3, 4, 1]), mask, mask.tolist())
    ]
    assert all(gap(outputs[0], other) == 0 for other in outputs)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert "forward" not in model.__dict__


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({"sten": [0]}, "kept names 'sten', which is not an edge of this graph; did you mean stem"),
        ({"stem": [0, 99]}, "holds index 99; the edge has units 0 to 15"),
        ({"stem": [0, 0]}, "names a unit twice"),
        ({"head": [0]}, "not an edge of this graph; its channels belong to stem"),
        (None, "kept is a NoneType; expected a dict"),
        ({"stem": [True, False]}, "has 2 booleans; the edge has 16 units"),
        ({"stem": [[0]]}, "expected one axis"),
        ({"stem": [0.5]}, "expected integer indices or booleans"),
    ],
)
def test_errors_name_wrong_kept_channels(kept: Any, words: str) -> None:
    model, x, _ = CASES["squeeze_excite"]()
    graph = gator.trace(model, x)
    with pytest.raises(gator.KeptError, match=words):
        gator.cut(model, graph, kept)


def test_masked_restores_the_model_even_after_an_error() -> None:
    model, x, _ = CASES["unet"]()
    graph = gator.trace(model, x)
    with pytest.raises(RuntimeError, match="on purpose"), gator.masked(model, graph, draw(graph, 0.5)):
        raise RuntimeError("on purpose")
    assert "forward" not in model.__dict__
    with (
        gator.masked(model, graph, {}),
        pytest.raises(gator.GatorError, match="leave the other masked"),
        gator.masked(model, graph, {}),
    ):
        pass


def test_gradients_flow_through_a_masked_network_to_its_own_parameters() -> None:
    model, x, _ = CASES["unet"]()
    graph = gator.trace(model, x)
    with gator.masked(model, graph, {"down1": [0, 1]}):
        model(x).sum().backward()
    gradient = model.down2.weight.grad
    assert float(gradient[:, :2].abs().min()) > 0
    assert float(gradient[:, 2:].abs().max()) == 0


@pytest.mark.parametrize(
    "name", ["unet", "grouped_and_depthwise", "squeeze_excite", "option_a_shortcut", "dense_connections", "c2f"]
)
def test_an_independent_check_without_labels(name: str) -> None:
    """In the eager model, set weights that read removed channels to zero and weights that write them to large random values."""
    model, x, _ = CASES[name]()
    model, x = randomised(model), x.double()
    graph = gator.trace(model, x)
    kept = draw(graph, 0.5, seed=3)
    small = gator.cut(model, graph, kept)
    disturbed = copy.deepcopy(model)
    with torch.no_grad():
        for edge in graph.edges:
            gone = set(range(edge.width)) - set(kept[edge.name].tolist())
            readers = {f"{layer}.weight" for layer in edge.consumers}
            for member in edge.members:
                dead = [i for i, unit in enumerate(member.units) if unit in gone]
                tensor = dict([*disturbed.named_parameters(), *disturbed.named_buffers()])[member.parameter]
                if member.axis == _reads(disturbed, member.parameter) and member.parameter in readers:
                    tensor.transpose(0, member.axis)[dead] = 0
        for edge in graph.edges:
            gone = set(range(edge.width)) - set(kept[edge.name].tolist())
            for member in edge.members:
                dead = [i for i, unit in enumerate(member.units) if unit in gone]
                tensor = dict([*disturbed.named_parameters(), *disturbed.named_buffers()])[member.parameter]
                if member.axis != _reads(disturbed, member.parameter) and not member.parameter.endswith("running_var"):
                    view = tensor.transpose(0, member.axis)
                    view[dead] = torch.where(view[dead] == 0, view[dead], 1e3 * torch.randn_like(view[dead]))
    assert gap(run(disturbed, x), run(small, x)) <= 1e-8
    assert gap(run(model, x), run(small, x)) > 1e-3


def _reads(model: nn.Module, parameter: str) -> int:
    """The input axis of a weight: 0 for transposed convolutions, 1 otherwise."""
    return 0 if isinstance(model.get_submodule(parameter.rpartition(".")[0]), nn.ConvTranspose2d) else 1


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        first = stride != 1 or inside != outside
        self.downsample = (
            nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)) if first else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def bottlenecks() -> nn.Module:
    blocks = [Bottleneck(8, 4, 16), Bottleneck(16, 4, 16), Bottleneck(16, 6, 24, 2), Bottleneck(24, 6, 24)]
    return nn.Sequential(conv(3, 8), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))


@pytest.mark.parametrize("emptied", ["2.conv1", "2.conv2", "3.conv1", "3.conv2", "4.conv1", "4.conv2", "5.conv1", "5.conv2"])
def test_a_bottleneck_without_inner_channels_is_removed(emptied: str) -> None:
    """With either inner edge empty, also in the first block of a stage, the output is that of the masked network."""
    model = randomised(bottlenecks())
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    graph = gator.trace(model, x)
    kept = {**draw(graph, 0.5), emptied: []}
    small = assert_masked_equals_cut(model, x, graph, kept)
    block = emptied.partition(".")[0]
    inside = [f"{block}.{layer}" for layer in ("conv1", "bn1", "conv2", "bn2", "conv3", "bn3")]
    assert not [n for n in small.state_dict() if any(n.startswith(layer + ".") for layer in inside)]
    assert not [n for n in small.graph.nodes if n.op == "call_module" and n.target in inside]
    # The constant is added to the bias of a shortcut that ends in a batch norm; otherwise it stays, one value per channel.
    added = set(small.state_dict()) - set(model.state_dict())
    assert added == (set() if model[int(block)].downsample is not None else {f"folded_{block}_bn3"})
    assert gator.measure(small, x).macs == gator.predict_macs(graph, kept)
    model.train()
    small.train()
    with gator.masked(model, graph, kept):
        expected = run(model, x)
    assert gap(expected, run(small, x)) <= 1e-8


def test_a_removed_branch_without_bias_leaves_nothing() -> None:
    """A pre-activation block ends in a convolution without bias: it adds zero, so the sum is removed too."""

    def forward(m, x):
        x = m.stem(x)
        x = x + m.scale * m.two(F.relu(m.norm(m.one(x))))
        return m.head(x)

    parts = {
        "stem": conv(3, 6),
        "one": conv(6, 4),
        "norm": nn.BatchNorm2d(4),
        "two": conv(4, 6, bias=False),
        "head": conv(6, 2),
    }
    model = randomised(Run(forward, scale=nn.Parameter(torch.randn(6, 1, 1)), **parts))
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    graph = gator.trace(model, x)
    small = assert_masked_equals_cut(model, x, graph, {"one": []})
    assert [n.op for n in small.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    assert {n.partition(".")[0] for n in small.state_dict()} == {"stem", "head"}


def test_all_residual_blocks_can_be_removed_but_not_the_residual_stream() -> None:
    model = randomised(zoo.build("cifar:resnet20").model)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    graph = gator.trace(model, x)
    inner = [e.name for e in graph.edges if len(e.producers) == 1]
    small = assert_masked_equals_cut(model, x, graph, {name: [] for name in inner})
    assert [n.target for n in small.graph.nodes if n.op == "call_module"] == ["conv1", "bn1", "linear"]
    with pytest.raises(gator.KeptError, match=r"disconnect the output from the input: edge '(conv1|layer\d)"):
        gator.cut(model, graph, {e.name: [] for e in graph.edges})
    with (
        pytest.raises(gator.KeptError, match="disconnect the output from the input"),
        gator.masked(model, graph, {e.name: [] for e in graph.edges}),
    ):
        pass


def test_a_mean_over_channels_needs_one_of_them() -> None:
    model, x, _ = CASES["cbam"]()
    graph = gator.trace(model, x)
    with pytest.raises(gator.KeptError, match=r"edge 'stem' cannot lose all its channels: (mean|amax|max) at"):
        gator.cut(model, graph, {"stem": []})


def test_attention_without_heads_becomes_its_bias() -> None:
    model, x, _ = CASES["class_token_and_positions"]()
    model, x = randomised(model), x.double()
    graph = gator.trace(model, x)
    small = assert_masked_equals_cut(model, x, graph, {"qkv": []})
    assert not [n for n in small.state_dict() if n.startswith(("qkv", "out"))]


def test_training_flags_of_submodules_are_kept() -> None:
    model, x, _ = CASES["frozen_parameters"]()
    model.train()
    model[1].eval()
    graph = gator.trace(model, x)
    for form in (None, False):
        small = gator.cut(model, graph, draw(graph, 0.5), keep_class=form)
        flags = dict(small.named_modules())
        assert small.training
        assert not flags["1"].training
        assert not flags["0"].weight.requires_grad


def test_googlenet_and_inception_train_after_a_cut(torchvision) -> None:
    """Auxiliary heads included: they run in train mode only."""
    for name, size in (("googlenet", 96), ("inception_v3", 299)):
        network = zoo.build(f"torchvision:{name}")
        model, x = network.model, torch.randn(2, 3, size, size)
        graph = gator.trace(model, x)
        for form in (None, False):
            small = gator.cut(model, graph, draw(graph, 0.25), keep_class=form)
            small.train()
            outputs = small(x)
            sum(F.cross_entropy(o, torch.tensor([0, 1])) for o in outputs if o is not None).backward()
            aux = [p for n, p in small.named_parameters() if "aux" in n.lower()]
            assert aux
            assert all(p.grad is not None for p in aux)
            small.eval()
            assert small(x).shape == (2, 1000)


def test_a_wrong_cut_is_not_returned(monkeypatch) -> None:
    from gator.surgery import rewrite

    def wrong(emitter, call, args):
        return emitter.call_op(call.op, {**args, "scale": 0.9})

    model, x, _ = CASES["class_token_and_positions"]()
    graph = gator.trace(model, x)
    monkeypatch.setitem(rewrite.REWRITES, torch.ops.aten.scaled_dot_product_attention, wrong)
    with pytest.raises(gator.CutError, match="differs from the masked one by"):
        gator.cut(model, graph, draw(graph, 0.5))
    gator.cut(model, graph, draw(graph, 0.5), verify=False)


def test_the_class_is_not_kept_if_it_computes_something_else() -> None:
    """A scale computed from the width changes with the cut: the class runs, but computes something else."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 16), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(x)
            return self.two(torch.relu(x) * x.shape[-1] ** -0.5)

    model, x = randomised(Scaled()), torch.randn(2, 4, dtype=torch.float64)
    graph = gator.trace(model, x)
    small = assert_masked_equals_cut(model, x, graph, {"one": range(5)})
    assert isinstance(small, torch.fx.GraphModule)


def test_the_class_is_not_kept_if_it_fails_in_train_mode() -> None:
    """Eval mode accepts any width, train mode has a hard-coded one."""

    def forward(m, x):
        x = m.one(x)
        return m.two(x.view(-1, 4, 4).flatten(1) * torch.rand(1, dtype=x.dtype) if m.training else x)

    model, x = randomised(Run(forward, one=nn.Linear(4, 16), two=nn.Linear(16, 3))), torch.randn(2, 4, dtype=torch.float64)
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, {"one": [0, 1, 2]})
    assert isinstance(small, torch.fx.GraphModule)
    assert small.train()(x).shape == (2, 3)


def test_a_forward_assigned_by_others_is_restored() -> None:
    model, x, _ = CASES["unet"]()
    original = model.forward
    model.forward = lambda x: original(x) * 2
    mine = model.forward
    graph = gator.trace(model, x)
    with gator.masked(model, graph, {}):
        assert gap(mine(x), run(model, x)) <= 1e-6
    assert model.forward is mine


def test_the_graph_form_refuses_other_arguments() -> None:
    model, x, _ = CASES["two_inputs_by_keyword"]()
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, draw(graph, 0.5), keep_class=False)
    assert small(right=x["right"], left=x["left"]).shape == (2, 2)
    with pytest.raises(gator.GatorError, match="traced with other arguments"):
        small(left=x["left"], right={"x": x["right"]["x"], "y": x["left"]})


def test_half_precision_networks_are_cut() -> None:
    model, x, _ = CASES["unet"]()
    model, x = model.bfloat16(), x.bfloat16()
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, draw(graph, 0.5))
    assert next(small.parameters()).dtype == torch.bfloat16
    assert doubled(x).dtype == torch.float64


def test_a_custom_module_keeps_its_class_and_names() -> None:
    model = Run(lambda m, x: m.b(m.a(x)), a=nn.Linear(4, 6), b=nn.Linear(6, 2))
    graph = gator.trace(model, torch.zeros(1, 4))
    small = gator.cut(model, graph, {"a": [0]})
    assert type(small) is Run
    assert (small.a.out_features, small.b.in_features) == (1, 1)


def test_a_branch_of_which_only_padding_remains() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.branch, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 1), nn.Conv2d(7, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.cat([self.stem(x), torch.sigmoid(F.pad(self.branch(x), (0, 0, 0, 0, 1, 0)))], 1))

    model, x = randomised(Padded()), torch.randn(2, 3, 4, 4).double()
    graph = gator.trace(model, x)
    assert_masked_equals_cut(model, x, graph, {"branch": []})


def test_a_constant_that_is_split_into_unequal_parts() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1)
            self.left, self.right = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
            self.one, self.two = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right = self.outer(F.relu(self.inner(x))).chunk(2, 1)
            return self.one(F.relu(left + self.left(x))) + self.two(F.relu(right + self.right(x)))

    model, x = randomised(Split()), torch.randn(2, 3, 4, 4).double()
    graph = gator.trace(model, x)
    assert [edge.width for edge in graph.edges] == [4, 3, 3]
    assert_masked_equals_cut(model, x, graph, {"inner": [], graph.edges[1].name: [1]})
