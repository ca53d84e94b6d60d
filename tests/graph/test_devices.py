"""Networks that are not on the CPU: on the meta device, and on a GPU that is simulated with fake tensors."""

from __future__ import annotations

import copy

import pytest
import torch
from networks import CASES
from support import draw, gap, run
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

import gator
from gator import zoo
from gator.graph.bake import needs_baking

X = torch.zeros(2, 3, 32, 32)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


def widths(graph: gator.Hypergraph) -> list[tuple[str, int]]:
    return [(edge.name, edge.width) for edge in graph.edges]


def test_tensors_on_the_meta_device_are_told_apart() -> None:
    with torch.device("meta"):
        model = perceptron()
    assert widths(gator.trace(model, torch.zeros(2, 4))) == [("0", 8), ("2", 6)]
    model[4].weight = model[2].weight = nn.Parameter(torch.empty(6, 6, device="meta"))
    model[0] = nn.Linear(4, 6, device="meta")
    model[4].bias = nn.Parameter(torch.empty(6, device="meta"))
    graph = gator.trace(model, torch.zeros(2, 4))
    assert graph.edges == ()  # the output is fixed, and all three are tied to it by the shared weight


def test_a_network_is_cut_and_applied_on_the_meta_device(tmp_path) -> None:
    real = zoo.build("cifar:resnet20").model.eval()
    meta = copy.deepcopy(real).to("meta")
    graph = gator.trace(meta, X)
    assert widths(graph) == widths(gator.trace(real, X))
    kept = draw(graph, 0.5)
    for how in (None, False):
        small = gator.cut(meta, graph, kept, keep_class=how)
        assert all(tensor.is_meta for tensor in small.state_dict().values())
        expected = gator.cut(real, graph, kept, keep_class=how)
        assert gator.plan(small) == gator.plan(expected)
        assert {n: t.shape for n, t in small.state_dict().items()} == {n: t.shape for n, t in expected.state_dict().items()}
        gator.save(expected, tmp_path / "small.safetensors")
        loaded = gator.load(tmp_path / "small.safetensors", meta)
        assert gap(run(loaded, X), run(expected, X)) == 0
        assert all(parameter.is_meta for parameter in meta.parameters())
    with pytest.raises(gator.CutError, match="cannot be computed on the meta device"):
        gator.cut(meta, graph, {"layer1.1.conv1": []})
    closed = gator.cut(real, graph, {"layer1.1.conv1": []})
    assert set(gator.apply(gator.plan(closed), meta).state_dict()) == set(closed.state_dict())


MODE = FakeTensorMode()


def fake(tensor: Tensor) -> Tensor:
    return FakeTensor(MODE, tensor.detach().to("meta"), torch.device("cuda"))


def on_a_fake_gpu(model: nn.Module) -> nn.Module:
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    if tensor not in made:
                        # Gradients of fake tensors would need a build of torch with CUDA.
                        is_parameter = isinstance(tensor, nn.Parameter)
                        made[tensor] = nn.Parameter(fake(tensor), requires_grad=False) if is_parameter else fake(tensor)
                    held[name] = made[tensor]
    return model


NEEDS_CUDA = (
    "not linked with support for cuda",
    "not compiled with CUDA",
    "compiled without cuDNN",
    "no NVIDIA driver",
    "CUDA driver",
)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"tied_by_storage"}))
def test_the_edges_are_the_same_on_a_gpu(name: str) -> None:
    model, inputs, _ = CASES[name]()
    if needs_baking(model):
        pytest.skip("fake tensors cannot be copied")
    expected = widths(gator.trace(model, inputs))
    inputs = pytree.tree_map(lambda x: fake(x) if isinstance(x, Tensor) else x, inputs)
    try:
        found = widths(gator.trace(on_a_fake_gpu(model), inputs))
    except gator.TraceError as error:
        if any(words in str(error) for words in NEEDS_CUDA):
            pytest.skip("torch itself needs a build with CUDA for this network")
        raise
    assert found == expected


def test_index_buffers_are_read_on_the_cpu(monkeypatch) -> None:
    """A CUDA tensor cannot be converted to numpy: every buffer that is converted was copied with `cpu()` first."""
    model, inputs, _ = CASES["indexed_channels"]()
    addresses = {buffer.data_ptr() for buffer in model.buffers()}
    assert addresses
    cpu, numpy = Tensor.cpu, Tensor.numpy

    def numpy_of_cpu_tensors(tensor: Tensor):
        if tensor.data_ptr() in addresses:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return numpy(tensor)

    monkeypatch.setattr(Tensor, "cpu", lambda tensor: cpu(tensor).clone())  # a copy, as from a GPU
    monkeypatch.setattr(Tensor, "numpy", numpy_of_cpu_tensors)
    assert gator.trace(model, inputs).edges
