"""The hypergraph of known networks; tracing does not change the model; printing, explaining and the JSON form of a graph."""

import copy
import json

import pytest
import torch
from networks import CASES, Run, conv
from support import randomised
from torch import nn

import gator
from gator import zoo
from gator.graph.select_layers import layers_named

LAYERS = {1: 3, 2: 4, 3: 6, 4: 3}


def residual_stream(stage: int) -> tuple[set[str], set[str]]:
    """Producers and consumers of the residual stream of a stage in ResNet-50 (paper, table 1)."""
    blocks = LAYERS[stage]
    producers = {f"layer{stage}.0.downsample.0", *(f"layer{stage}.{b}.conv3" for b in range(blocks))}
    consumers = {f"layer{stage}.{b}.conv1" for b in range(1, blocks)}
    consumers |= {f"layer{stage + 1}.0.conv1", f"layer{stage + 1}.0.downsample.0"} if stage < 4 else {"fc"}
    return producers, consumers


def test_resnet50_is_table_1_of_the_paper(torchvision) -> None:
    graph = gator.trace(torchvision.models.resnet50(), torch.zeros(1, 3, 224, 224))
    assert len(graph.edges) == 37
    inner = [e for e in graph.edges if len(e.producers) == 1 and len(e.consumers) == 1]
    assert len(inner) == 32
    assert all(e.producers[0][-5:] in ("conv1", "conv2") and e.consumers[0][-5:] in ("conv2", "conv3") for e in inner)
    assert set(graph["conv1"].consumers) == {"layer1.0.conv1", "layer1.0.downsample.0"}
    for stage in LAYERS:
        edge = next(e for e in graph.edges if f"layer{stage}.0.downsample.0" in e.producers)
        assert (set(edge.producers), set(edge.consumers)) == residual_stream(stage)
        assert edge.width == 64 * 4 * 2 ** (stage - 1)
    assert graph.macs == 4_089_184_256
    assert graph.unsupported == ()


def test_resnet18_has_12_edges(torchvision) -> None:
    assert len(gator.trace(torchvision.models.resnet18(), torch.zeros(1, 3, 64, 64)).edges) == 12


def test_option_a_shortcuts_of_cifar_resnet56_are_prunable() -> None:
    network = zoo.build("cifar:resnet56")
    graph = gator.trace(network.model, network.example_inputs)
    assert [(e.name, e.width) for e in graph.edges if len(e.producers) > 1] == [
        ("conv1", 16),
        ("layer2.0.conv2", 16),
        ("layer3.0.conv2", 32),
    ]
    assert len(graph.edges) == 27 + 3
    assert graph.prunable_share > 0.999


def test_hand_counted_parameters_and_macs() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    graph = gator.trace(net, torch.zeros(1, 3, 8, 8))
    (edge,) = graph.edges
    assert graph.macs == 3_888 + 288
    assert (edge.name, edge.width, edge.producers, edge.consumers) == ("0", 4, ("0",), ("2",))
    assert (edge.parameters, edge.macs) == (108 + 4 + 8, 3_888 + 288)


def test_tracing_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.Dropout(), nn.LSTM(8, 5))
    model.append(nn.Linear(5, 2))
    model = Run(lambda m, x: m.body[4](m.body[3](m.body[2](m.body[1](m.body[0](x))).flatten(2))[0]), body=model)
    model.train()
    model.body[1].eval()
    calls = []
    model.body[0].register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(2, 3, 2, 4)
    model(x).sum().backward()
    before_state = copy.deepcopy(model.state_dict())
    before = [(n, p.data_ptr(), p.grad.clone(), p.requires_grad) for n, p in model.named_parameters()]
    flags = [m.training for m in model.modules()]
    hooks = [len(m._forward_hooks) for m in model.modules()]
    keys = [set(m.__dict__) for m in model.modules()]
    state = torch.get_rng_state()
    gator.trace(model, x)
    assert torch.equal(state, torch.get_rng_state())
    assert flags == [m.training for m in model.modules()]
    assert hooks == [len(m._forward_hooks) for m in model.modules()]
    assert keys == [set(m.__dict__) for m in model.modules()]
    after = dict(model.named_parameters())
    for name, pointer, gradient, requires in before:
        assert after[name].data_ptr() == pointer
        assert torch.equal(after[name].grad, gradient)
        assert after[name].requires_grad == requires
    assert all(torch.equal(before_state[k], v) for k, v in model.state_dict().items())


def test_a_cache_between_calls_is_restored() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.cache = nn.Linear(4, 6), nn.Linear(6, 2), {}
            self.bias = nn.Parameter(torch.randn(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training and "bias" not in self.cache:
                self.cache["bias"] = self.bias * 2
            return self.two(self.one(x) + (self.bias * 2 if self.training else self.cache["bias"]))

    model = Caching().eval()
    graph = gator.trace(model, torch.zeros(2, 4))
    assert model.cache == {}
    assert graph["one"].width == 6
    assert model(torch.zeros(2, 4)).shape == (2, 2)


def test_tied_and_shared_members() -> None:
    model, inputs, _ = CASES["tied_embedding"]()
    graph = gator.trace(model, inputs)
    assert graph["embed"].consumers == ("mix", "embed")
    assert graph["embed"].producers[0] == "embed"


def test_heads_whole_dims_and_by_name() -> None:
    model, inputs, _ = CASES["class_token_and_positions"]()
    assert gator.trace(model, inputs)["qkv"].width == 2
    assert gator.trace(model, inputs, heads="dims")["qkv"].width == 8
    model, inputs, _ = CASES["transformer_encoder"]()
    graph = gator.trace(model, inputs, heads={"1.layers.1.self_attn": "dims"})
    assert graph["1.layers.0.self_attn"].width == 4
    assert sum(e.width for e in graph.edges if e.producers == ("1.layers.1.self_attn",)) == 4


def test_fixed_layers_are_not_pruned() -> None:
    net = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 6), nn.ReLU(), conv(6, 2))
    assert [e.name for e in gator.trace(net, torch.zeros(1, 3, 8, 8)).edges] == ["0", "2"]
    graph = gator.trace(net, torch.zeros(1, 3, 8, 8), fixed=["2"])
    assert graph.edges == ()
    assert "selected by fixed=" in graph.explain("2.weight")


def test_layers_are_selected_by_name_module_and_pattern() -> None:
    block = nn.Sequential(conv(4, 4), nn.ReLU(), conv(4, 6))
    net = nn.Sequential(conv(3, 4), block, nn.ReLU(), conv(6, 2))
    x = torch.zeros(1, 3, 8, 8)
    assert layers_named(net, ["1.*", net[3], "0.weight"]) == ("1.0", "1.2", "3", "0.weight")
    assert layers_named(net, [block, "1.0"]) == ("1",)
    assert layers_named(net, ["*.bias"]) == ("0.bias", "1.0.bias", "1.2.bias", "3.bias")
    assert layers_named(net, []) == ()
    by_name = gator.trace(net, x, fixed=["1.0", "1.2"])
    for given in (["1.*"], [block], [block[0], block[2]]):
        assert gator.trace(net, x, fixed=given).edges == by_name.edges
    normalised = nn.Sequential(nn.utils.parametrizations.weight_norm(conv(3, 4)), nn.ReLU(), conv(4, 2))
    assert gator.trace(normalised, x, fixed=[normalised[0]]).edges == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["layer9.*"], r"fixed= has the pattern 'layer9\.\*', which matches no layer"),
        ([nn.ReLU()], "holds a ReLU that is not part of the model"),
        ([3], "holds 3; expected names, glob patterns or modules"),
        (nn.ReLU(), r"is a ReLU; expected a list of layers, \[layer\]"),
    ],
)
def test_the_error_names_a_selection_that_matches_nothing(given, words: str) -> None:
    net = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 2))
    with pytest.raises(gator.TraceError, match=words):
        gator.trace(net, torch.zeros(1, 3, 8, 8), fixed=given)
    with pytest.raises(gator.TraceError, match="holds the model itself"):
        gator.trace(net, torch.zeros(1, 3, 8, 8), fixed=[net])


def test_fixing_nothing_is_an_error() -> None:
    net = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 2))
    with pytest.raises(gator.TraceError, match="fixed= names '1', which has no parameters"):
        gator.trace(net, torch.zeros(1, 3, 8, 8), fixed=["1"])


def test_heads_by_the_name_of_the_module_around_them() -> None:
    model, inputs, _ = CASES["transformer_encoder"]()
    inside = gator.trace(model, inputs, heads={"1.layers.1": "dims"})
    assert inside["1.layers.0.self_attn"].width == inside["1.layers.1.self_attn"].width == 4
    model, inputs, _ = CASES["class_token_and_positions"]()
    model = Run(lambda m, x: m.inner(x), inner=model)
    assert gator.trace(model, inputs, heads={"inner": "dims"})["inner.qkv"].width == 8
    with pytest.raises(gator.TraceError, match="which writes no queries, keys or values; the layers that do are inner"):
        gator.trace(model, inputs, heads={"inner.head": "dims"})


def test_a_graph_of_another_network_is_refused() -> None:
    """Above all the graph of the same network before a cut, in a loop that does not trace again."""
    model, inputs, _ = CASES["unet"]()
    graph = gator.trace(model, inputs)
    gator.cut_(model, graph, {"down1": range(4)})
    for use in (lambda: gator.cut_(model, graph, {"down2": range(4)}), lambda: gator.cut(model, graph, {})):
        with pytest.raises(gator.TraceError, match=r"down1.weight has shape \(4, 3, 3, 3\)[\s\S]*again after every cut"):
            use()
    with pytest.raises(gator.TraceError, match="describes another network"), gator.masked(model, graph, {}):
        pass
    with pytest.raises(gator.TraceError, match="which this Sequential lacks"):
        gator.cut(nn.Sequential(conv(3, 2)), graph, {})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fixed": ["heat"]}, "fixed= names 'heat', which the model does not have; did you mean head"),
        ({"fixed": "head"}, "is a string; expected a list of names"),
        ({"heads": "both"}, "heads='both'; expected \"whole\""),
        ({"heads": {"stem": "some"}}, "heads='some'"),
        ({"heads": {"nothing": "dims"}}, "heads= names 'nothing'"),
    ],
)
def test_errors_name_the_wrong_option(options: dict, words: str) -> None:
    model, inputs, _ = CASES["called_twice"]()
    with pytest.raises(gator.TraceError, match=words):
        gator.trace(model, inputs, **options)


def test_the_error_of_an_untraceable_network_says_where() -> None:
    model = Run(lambda m, x: m.a(x) if x.sum() > 0 else m.b(x), a=nn.Linear(3, 2), b=nn.Linear(3, 2))
    with pytest.raises(gator.TraceError, match=r"the network reads the values of a tensor[\s\S]*test_hypergraph.py"):
        gator.trace(model, torch.zeros(2, 3))
    model = Run(lambda m, x: m.a(x[x > 0]), a=nn.Linear(3, 2))
    with pytest.raises(gator.TraceError, match=r"the network reads the values of a tensor \(index\)"):
        gator.trace(model, torch.zeros(2, 3))
    with pytest.raises(gator.TraceError, match="could not be recorded"):
        gator.trace(nn.Linear(3, 2), torch.zeros(2, 4))
    with pytest.raises(gator.TraceError, match=r"returns a [\w.]*list_iterator, which cannot be taken apart"):
        gator.trace(Run(lambda m, x: iter([m.a(x)]), a=nn.Linear(3, 2)), torch.zeros(2, 3))
    with pytest.raises(gator.TraceError, match="holds no tensor"):
        gator.trace(nn.Linear(3, 2), ())
    with pytest.raises(gator.TraceError, match=r"expected a torch.nn.Module"):
        gator.trace(torch.relu, torch.zeros(2, 3))
    with pytest.raises(gator.TraceError, match="expected a tensor, a tuple"):
        gator.trace(nn.Linear(3, 2), "x")


def test_an_operator_without_a_rule_is_reported_and_fixes_its_axes() -> None:
    def forward(m, x):
        return m.three(torch.cdist(m.two(torch.relu(m.one(x))), m.points))

    parts = {
        "one": nn.Linear(4, 6),
        "two": nn.Linear(6, 5),
        "points": nn.Parameter(torch.randn(7, 5)),
        "three": nn.Linear(7, 2),
    }
    model = randomised(Run(forward, **parts))
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    graph = gator.trace(model, x)
    assert [e.name for e in graph.edges] == ["one"]
    assert len(graph.unsupported) == 1
    assert "cdist" in graph.unsupported[0]
    assert "no rule for this operator, its axes are fixed: " in str(graph)
    assert "has no rule" in graph.explain("two.weight")
    small = gator.cut(model, graph, {"one": [0, 2]})
    with gator.masked(model, graph, {"one": [0, 2]}):
        assert torch.allclose(model(x), small(x), rtol=1e-10)


def test_print_and_explain() -> None:
    network = zoo.build("cifar:resnet20")
    graph = gator.trace(network.model, network.example_inputs)
    text = str(graph)
    assert text.splitlines()[0].split() == ["edge", "width", "producers", "consumers", "parameters", "MACs"]
    assert "12 edges, 400 units" in text
    assert repr(graph) == "<Hypergraph: 12 edges, 400 units; print it for a table>"
    assert len(repr(graph.edges[0])) < 1000
    assert "100.0% of 269,722 parameters on a prunable axis; 40,551,040 MACs (81,102,080 FLOPs)" in text
    why = graph.explain("conv1")
    assert "16 units" in why
    assert "batch_norm at" in why
    assert "cifar.py:" in why
    assert "the network's output" in graph.explain("linear.bias")
    assert "linear.weight axis 1 (64): edge" in graph.explain("linear")
    with pytest.raises(gator.GatorError, match="did you mean linear"):
        graph.explain("liner")
    with pytest.raises(gator.GatorError, match="no edge 'conv2'; did you mean conv1"):
        graph["conv2"]


def test_json_round_trip() -> None:
    model, inputs, _ = CASES["two_inputs_by_keyword"]()
    model.double()
    inputs = {"left": inputs["left"].double(), "right": {"x": inputs["right"]["x"].double()}}
    graph = gator.trace(model, inputs)
    again = gator.SavedGraph.from_json(graph.to_json())
    assert again == graph.saved()
    kept = {"one": [0, 3]}
    with gator.masked(model, again, kept):
        expected = model(**inputs)
    assert torch.allclose(gator.cut(model, again, kept)(**inputs), expected)
    with pytest.raises(gator.TraceError, match="another architecture"):
        gator.cut(nn.Sequential(nn.Linear(4, 3)), gator.SavedGraph.from_json(_json_of_linear(5)), {})
    with pytest.raises(gator.GatorError, match="not a graph in JSON form"):
        gator.SavedGraph.from_json("[]")
    newer = json.dumps({**json.loads(graph.to_json()), "format": 99})
    with pytest.raises(gator.GatorError, match="format 99"):
        gator.SavedGraph.from_json(newer)


def _json_of_linear(width: int) -> str:
    return gator.trace(nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2)), torch.zeros(1, 4)).to_json()


def test_batch_size_and_unbatched_inputs() -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 3)).double()
    for shape in [(3, 8, 8), (1, 3, 8, 8), (5, 3, 8, 8)]:
        x = torch.randn(shape, dtype=torch.float64)
        graph = gator.trace(net, x)
        small = gator.cut(net, graph, {"0": [1, 4]}, keep_class=False)
        with gator.masked(net, graph, {"0": [1, 4]}):
            assert torch.allclose(net(x), small(x), rtol=1e-10)
        assert graph.macs == gator.measure(net, x).macs
