"""Saving and loading gives the same network; files that cannot be read are errors, and the model is not changed."""

import copy
import json

import pytest
import torch
from networks import CASES
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support import draw, gap, run
from torch import nn

import gator
from gator import zoo


@pytest.mark.parametrize("name", sorted(CASES))
def test_round_trip(name: str, tmp_path) -> None:
    model, inputs, _ = CASES[name]()
    model.eval()
    small = model
    for share in (0.7, 0.7):
        graph = gator.trace(small, inputs)
        small = gator.cut(small, graph, draw(graph, share)).eval()
    gator.save(small, tmp_path / "small.safetensors")
    torch.manual_seed(99)
    fresh = CASES[name]()[0].eval()
    if name == "indexed_channels" or any(b.dtype == torch.long for b in fresh.buffers()):
        fresh.load_state_dict(model.state_dict())  # index tables are part of the architecture
    loaded = gator.load(tmp_path / "small.safetensors", fresh)
    assert gap(run(small, inputs), run(loaded, inputs)) == 0
    assert set(loaded.state_dict()) == set(small.state_dict())


def test_a_network_that_was_cut_twice_with_removed_blocks(tmp_path) -> None:
    model = zoo.build("cifar:resnet20").model.double().eval()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    graph = gator.trace(model, x)
    once = gator.cut(model, graph, {"layer1.0.conv1": [], "layer3.0.conv1": [], "conv1": range(5)})
    with torch.no_grad():
        for parameter in once.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    graph = gator.trace(once, x)
    twice = gator.cut(once, graph, {**draw(graph, 0.5), "layer2.1.conv1": []})
    gator.save(twice, tmp_path / "twice.safetensors")
    loaded = gator.load(tmp_path / "twice.safetensors", zoo.build("cifar:resnet20").model.eval())
    assert next(loaded.parameters()).dtype == torch.float64
    assert gap(run(twice, x), run(loaded, x)) == 0
    again = gator.trace(loaded, x)
    assert [e.width for e in again.edges] == [e.width for e in gator.trace(twice, x).edges]


@pytest.fixture
def saved(tmp_path):
    model = zoo.build("cifar:resnet20").model
    graph = gator.trace(model, torch.zeros(1, 3, 32, 32))
    path = tmp_path / "small.safetensors"
    gator.save(gator.cut(model, graph, draw(graph, 0.5)), path)
    return path


def rewritten(path, change_tensors=lambda t: None, change_plan=lambda p: None) -> None:
    with safe_open(path, "pt") as file:
        plan = json.loads(file.metadata()["gator"])
    tensors = load_file(path)
    change_tensors(tensors)
    change_plan(plan)
    save_file(tensors, path, metadata={"gator": json.dumps(plan)})


def refused(path, words: str, network: str = "cifar:resnet20") -> None:
    model = zoo.build(network).model
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(gator.FileError, match=words):
        gator.load(path, model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_damaged_and_foreign_files(saved, tmp_path) -> None:
    with pytest.raises(gator.FileError, match="needs an instance of the original network"):
        gator.load(saved, nn.Linear)
    refused(saved, "another architecture: expected edge 'layer2.0.conv1' of width 32, found 'layer1.3.conv1'", "cifar:resnet32")
    refused(tmp_path / "none.safetensors", "there is no file")
    content = saved.read_bytes()
    for size in (0, 7, 100, len(content) // 2, len(content) - 1):
        saved.write_bytes(content[:size])
        refused(saved, "cannot be read")
    saved.write_bytes(b"\x80\x04not a safetensors file" * 10)
    refused(saved, "cannot be read")
    save_file({"a": torch.zeros(1)}, saved)
    refused(saved, "not one that gator.save wrote")


@pytest.mark.parametrize(
    ("tensors", "plan", "words"),
    [
        (lambda t: t.pop("bn1.bias"), lambda p: None, "lacks tensor 'bn1.bias'"),
        (
            lambda t: t.update({"bn1.bias": torch.zeros(3)}),
            lambda p: None,
            r"tensor 'bn1.bias' has shape \(3,\), the network has \(8,\)",
        ),
        (lambda t: t.update(extra=torch.zeros(3)), lambda p: None, "has tensor 'extra', which the network does not have"),
        (lambda t: None, lambda p: p.update(format=99), "has format 99.*upgrade gator"),
        (lambda t: None, lambda p: p.update(format=2), "has format 2; .* reads format 3: save the network again"),
        (lambda t: None, lambda p: p.pop("tied"), "the plan in it is damaged"),
        (lambda t: None, lambda p: p["plan"]["cuts"][0].pop("kept"), "the plan is damaged: 'kept' is missing"),
        (lambda t: None, lambda p: p["plan"]["cuts"][0]["kept"].update(nothing=[0]), "kept names 'nothing'"),
        (lambda t: None, lambda p: p.update(plan=None), "holds no cut"),
    ],
)
def test_the_error_names_the_first_mismatch(saved, tensors, plan, words: str) -> None:
    rewritten(saved, tensors, plan)
    refused(saved, words)


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch) -> None:
    from gator.files import save as module

    def full(*args, **kwargs) -> None:
        raise OSError("No space left on device")

    before = saved.read_bytes()
    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(gator.FileError, match="No space left on device"):
        gator.save(nn.Linear(2, 2), saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    with pytest.raises(gator.FileError, match="there is no folder"):
        gator.save(nn.Linear(2, 2), saved.parent / "nowhere" / "x.safetensors")


class Views(nn.Module):
    """Buffers that are views of each other and of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 2)
        table = torch.arange(12.0).reshape(3, 4)
        self.register_buffer("table", table)
        self.register_buffer("row", table[1])
        self.register_buffer("spread", torch.ones(1).expand(4))
        self.register_buffer("bias", self.two.bias.data[:1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x + self.row + self.table[0] + self.spread)) + self.bias


def test_views_as_buffers(tmp_path) -> None:
    model, x = Views(), torch.randn(2, 4)
    small = gator.cut(model, gator.trace(model, x), {"one": [0, 1, 5]})
    for network in (model, small):
        gator.save(network, tmp_path / "views.safetensors")
        held = load_file(tmp_path / "views.safetensors")
        assert all(torch.equal(held[name], tensor) for name, tensor in network.state_dict().items())
    assert gap(run(small, x), run(gator.load(tmp_path / "views.safetensors", Views()), x)) == 0
