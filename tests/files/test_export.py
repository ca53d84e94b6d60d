"""Exported files compute what PyTorch computes, at every size they claim to take; a file that does not is not left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import draw, gap, randomised, run
from torch import nn

import gator
from gator import zoo
from gator.files.formats.by_name import FORMATS, format_of
from gator.files.formats.format import as_strings, from_strings
from gator.files.formats.onnx_file import Onnx
from gator.files.program import program_of

pytestmark = pytest.mark.slow
ABOUT = gator.About(
    network="digits:resnet",
    input=(1, 8, 8),
    preprocessing=gator.Preprocessing((8, 8), 8, (0.3,), (0.4,), pixel_max=16, colors="L"),
    class_names=("zero", "one", "two, zwei"),
    recipe='name = "x"\n',
    tested_on="449 digits",
    figures={"accuracy": 97.5, "macs": 10},
    dense={"accuracy": 98.5, "macs": 20},
)


def cut(name: str, share: float = 0.6) -> tuple[nn.Module, torch.Tensor]:
    """A network cut at random, with statistics of batch norms that are not 0 and 1, whose output depends on its input."""
    torch.manual_seed(0)
    network = zoo.build(name)
    model, x = randomised(network.model).float(), network.example_inputs
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, draw(graph, share)).train()
    for norm in (module for module in small.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.reset_running_stats()
        norm.momentum = None
    run(small, torch.randn(4, *x.shape[1:]))
    small.eval()
    outputs = run(small, torch.randn(2, *x.shape[1:]))
    assert gap(outputs[0], outputs[1]) > 1e-2
    return small, x


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, torch.Tensor]:
    return cut("digits:resnet")


# The batch size is free for all, the image size for fully convolutional ones.
ZOO = [
    ("cifar:resnet56", True),
    ("torchvision:mobilenet_v3_small", True),
    ("torchvision:densenet121", True),
    ("torchvision:convnext_tiny", True),
    ("torchvision:vit_b_16", False),
]


@pytest.mark.parametrize(("name", "free_size"), ZOO, ids=[name.partition(":")[2] for name, _ in ZOO])
def test_onnx_and_openvino_agree_with_pytorch(name: str, free_size: bool, tmp_path, torchvision) -> None:
    model, x = cut(name)
    for suffix in (".onnx", ".xml"):
        done = gator.export(model, x, tmp_path / f"network{suffix}")
        assert done.sizes == "any batch size" + (", any height and width" if free_size else "")
        # With our own inputs, besides what `export` has compared.
        opened, real = format_of(done.path).open(done.path), torch.randn(5, *x.shape[1:])
        with torch.no_grad():
            assert gap(model(real), opened(real)[0]) <= 1e-4


@pytest.mark.parametrize("kind", FORMATS)
def test_what_belongs_to_the_network_is_in_the_file_and_beside_it(kind: str, digits, tmp_path) -> None:
    chosen = FORMATS[kind]
    path = tmp_path / f"network{chosen.suffix}"
    done = gator.export(*digits, path, about=ABOUT, real_inputs=[torch.rand(4, 1, 8, 8)])
    assert "4 real examples" in done.checked_on
    assert sorted(done.files) == sorted(tmp_path.iterdir())
    assert from_strings(chosen.about(path), path) == ABOUT
    beside = json.loads((tmp_path / f"{path.name}.json").read_text())
    assert beside["class_names"] == list(ABOUT.class_names)
    assert set(beside["sha256"]) == {file.name for file in done.files if file.suffix not in (".json", ".md")}
    card = (tmp_path / f"{path.name}.md").read_text()
    for words in ("| accuracy % | 98.50 | 97.50 | 0.990 |", "shorter side to 8", "0 zero, 1 one", 'name = "x"', "sha256"):
        assert words in card
    assert as_strings(gator.About())["class_names"] == "[]"


def test_pt2_opens_in_a_process_that_cannot_import_gator(digits, tmp_path) -> None:
    model, _ = digits
    gator.export(*digits, tmp_path / "network.pt2")
    x = torch.randn(3, 1, 8, 8)
    torch.save(x, tmp_path / "x.pt")
    code = (
        "import sys; sys.modules['gator'] = None\n"
        "import torch\n"
        "found = torch.export.load('network.pt2').module()(torch.load('x.pt'))\n"
        "torch.save(found, 'found.pt')\n"
        "assert not [name for name in sys.modules if name.startswith('gator.')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert gap(run(model, x), torch.load(tmp_path / "found.pt")) <= 1e-4


def test_batch_norms_are_folded(digits) -> None:
    model, x = digits
    program = program_of(model, x)
    assert program.folded == sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) > 0
    assert not [node for node in program.exported.graph.nodes if "batch_norm" in str(node.target)]
    assert not [name for name in program.exported.state_dict if "running" in name]


class Norms(nn.Module):
    """Batch norms that can be folded, and those that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 2, 2)
        self.grouped = nn.ConvTranspose2d(4, 4, 3, 1, 1, groups=2)
        self.conv, self.first = nn.Conv2d(4, 6, 3, bias=False), nn.Conv2d(3, 3, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (3, 3, 4, 4)])
        self.plain = nn.BatchNorm2d(6, affine=False)
        self.head, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](x)  # after no layer
        y = self.first(x)
        y = y + self.norms[1](y)  # of a value that something else reads too
        y = self.norms[3](self.grouped(self.norms[2](self.up(y))))
        return self.last(self.head(self.plain(self.conv(y)).mean((2, 3))))


def test_only_what_can_be_folded_is(tmp_path) -> None:
    model = randomised(Norms()).float()
    done = gator.export(model, torch.zeros(1, 3, 8, 8), tmp_path / "norms.onnx")
    assert done.folded == 3  # after `up`, `conv` and `head`
    assert done.difference <= 1e-5


class Several(nn.Module):
    """Two inputs by keyword, a number that is no tensor, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, a: torch.Tensor, *, b: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        return {"sum": self.one(a) + scale * self.two(b), "first": self.one(a)}


@pytest.mark.parametrize("suffix", [".pt2", ".onnx", ".xml"])
def test_several_inputs_and_outputs(suffix: str, tmp_path) -> None:
    model = Several().eval()
    done = gator.export(model, {"a": torch.zeros(2, 4), "b": torch.zeros(2, 5), "scale": 2.0}, tmp_path / f"several{suffix}")
    a, b = torch.randn(7, 4), torch.randn(7, 5)
    found = format_of(done.path).open(done.path)(a, b)
    with torch.no_grad():
        expected = model(a, b=b, scale=2.0)
    assert gap([expected["first"], expected["sum"]], sorted(found, key=lambda each: gap(expected["first"], each))) <= 1e-4


def test_the_network_is_left_as_it_was(digits, tmp_path) -> None:
    model = digits[0]
    model.train()
    first = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        gator.export(*digits, tmp_path / "network.pt2")
        assert model.training
        assert not first.training
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    finally:
        model.eval()


def test_a_file_that_differs_is_not_left_behind(digits, tmp_path, monkeypatch) -> None:
    import onnx
    from onnx import numpy_helper

    real = Onnx.write

    def damaged(self, program, path, about):
        files = real(self, program, path, about)
        model = onnx.load(str(path))
        weight = max(model.graph.initializer, key=lambda each: len(each.raw_data))
        changed = np.array(numpy_helper.to_array(weight)) * np.float32(1.01)
        weight.CopyFrom(numpy_helper.from_array(changed, weight.name))
        onnx.save(model, str(path))
        return files

    (tmp_path / "network.onnx").write_text("the one before")
    monkeypatch.setattr(Onnx, "write", damaged)
    with pytest.raises(gator.FileError, match="gives other numbers than PyTorch"):
        gator.export(*digits, tmp_path / "network.onnx")
    with pytest.raises(gator.FileError, match="gives other numbers than PyTorch"):
        gator.export(*digits, tmp_path / "network.xml")
    assert [path.name for path in tmp_path.iterdir()] == ["network.onnx"]
    assert (tmp_path / "network.onnx").read_text() == "the one before"


def test_what_cannot_be_exported(digits, tmp_path) -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(gator.GatorError, match="this network cannot be exported"):
        gator.export(Branch(), torch.zeros(1, 3), tmp_path / "branch.pt2")
    with pytest.raises(gator.FileError, match=r"ends in \.onnx, \.pt2 or \.xml"):
        gator.export(*digits, tmp_path / "network.tflite")
    with pytest.raises(gator.FileError, match="there is no folder"):
        gator.export(*digits, tmp_path / "no" / "network.onnx")
    for suffix in (".onnx", ".pt2", ".xml"):
        (tmp_path / f"broken{suffix}").write_bytes(b"no network")
        with pytest.raises(gator.FileError, match="cannot be"):
            format_of(Path(f"x{suffix}")).open(tmp_path / f"broken{suffix}")
        with pytest.raises(gator.FileError, match="cannot be"):
            format_of(Path(f"x{suffix}")).about(tmp_path / f"broken{suffix}")
