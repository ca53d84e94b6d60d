"""Runtimes: each runs the network it is given, refuses what it cannot do, and leaves everything as it was."""

from __future__ import annotations

import sys

import pytest
import torch
from fakes import CLOCK, small
from support import needs_compiler
from torch import nn

import gator
from gator.cost.denormals import denormals_of
from gator.cost.latency.layers.fused_layers import fused_layers_of
from gator.cost.latency.layers.standalone import Standalone
from gator.cost.latency.runtimes import device_name
from gator.cost.latency.runtimes.by_name import RUNTIMES, runtime_of
from gator.cost.latency.runtimes.onnx_runtime import bound, export_onnx
from gator.cost.latency.runtimes.run_setup import checked_setup
from gator.cost.latency.widths import kept_of
from gator.cost.timing import timed
from gator.surgery.slice import flush_denormals_


def setup(name: str, **settings):
    given = {"device": "cpu", "threads": 1, "dtype": "float32", "channels_last": False, "batch": None, **settings}
    return checked_setup(name, **given)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile imports what torch deprecates
@pytest.mark.parametrize("name", ["eager", pytest.param("compile", marks=needs_compiler), "onnxruntime", "openvino"])
def test_networks_run_and_report_the_time_of_layers(name) -> None:
    if name in ("onnxruntime", "openvino"):
        pytest.importorskip(name)
    model, _, graph = small()
    here = setup(name, batch=3)
    found = runtime_of(here)
    before = torch.get_num_threads()
    with here.on():
        call = here.arguments(graph.inputs)
        assert call[0][0].shape == (3, 3, 8, 8)
        result = found.prepare(model, call, here)()
        layers = found.layers(model, call, here, 2)
        expected = model(*call[0])
    taken = {"onnxruntime": lambda: result[0], "openvino": lambda: next(iter(result.values()))}
    first = taken.get(name, lambda: result)()
    assert torch.allclose(torch.as_tensor(first), expected, atol=1e-4)
    assert len(layers) >= 6 or name == "compile"  # which does not report it
    assert all(ms >= 0 for _, ms in layers)
    assert torch.get_num_threads() == before
    assert not any(module._forward_hooks for module in model.modules())
    assert found.versions()


def test_onnx_runtime_leaves_tensors_on_the_device() -> None:
    """As it does where there is a GPU; here the device is the CPU."""
    pytest.importorskip("onnxruntime")
    model, _, graph = small()
    here = setup("onnxruntime", batch=3)
    with here.on():
        call = here.arguments(graph.inputs)
        session, feed = RUNTIMES["onnxruntime"]._session(model, call, here, profile="")
        (result,) = bound(session, feed, "cpu")()
        assert torch.allclose(torch.as_tensor(result.numpy()), model(*call[0]), atol=1e-4)


def test_channels_last_and_types() -> None:
    model, _, graph = small()
    here = setup("eager", channels_last=True, dtype=torch.bfloat16)
    call = here.arguments(graph.inputs)
    assert call[0][0].is_contiguous(memory_format=torch.channels_last)
    assert RUNTIMES["eager"].prepare(model, call, here)().dtype == torch.bfloat16
    assert model.stem.weight.dtype == torch.float32
    assert not model.stem.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("case", ["full", "narrow"])
def test_a_segment_computes_what_it_computes_inside_the_network(case) -> None:
    """Its output, from the inputs it has inside the cut network."""
    model, _, graph = small()
    widths = [64, 48, 48] if case == "full" else [40, 21, 48]
    network = gator.cut(model, graph, kept_of(graph, widths))
    seen = {}
    network.first[0].register_forward_hook(lambda m, args, out: seen.update(x=args[0], y=out))
    network(torch.randn(2, 3, 8, 8))
    layer = fused_layers_of(graph)[1]
    part, _ = Standalone(model, graph, layer).built(layer.at(widths), setup("eager"))
    (result,) = part(seen["x"])
    assert torch.allclose(result, torch.relu(seen["y"]), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"runtime": "onnx"},
            "runtime='onnx'; expected 'eager', 'compile', 'onnxruntime', 'openvino'; did you mean onnxruntime",
        ),
        ({"method": "guess"}, "method='guess'; expected 'table' or 'probe'"),
        ({"threads": 0}, "threads=0; expected an integer"),
        ({"batch": 1.5}, "batch=1.5; expected an integer"),
        ({"dtype": "int8"}, "dtype='int8'; expected one of float32"),
        ({"device": "tpu"}, "device='tpu'; expected one of cpu, cuda, mps"),
        ({"rounds": 0}, "rounds=0; expected"),
        ({"runtime": "onnxruntime", "channels_last": True}, "which chooses its own layout"),
        ({"runtime": "onnxruntime", "dtype": "bfloat16"}, "expected float32 or float16"),
        ({"other_device": True}, "other_device=True needs table="),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, words) -> None:
    with pytest.raises(gator.GatorError) as raised:
        gator.Latency(**settings)
    assert words in str(raised.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_device() -> None:
    with pytest.raises(gator.GatorError, match="does not find such a device"):
        gator.Latency(device="cuda")


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("onnxruntime", "onnxruntime", "onnx"), ("openvino", "openvino", "openvino")]
)
def test_a_missing_extra_is_named(name, package, extra, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(gator.MissingExtraError, match=rf"torch-gator\[{extra}\]"):
        gator.Latency(name)


def test_a_batch_the_network_does_not_take() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 12).sum(1)

    graph = gator.trace(nn.Sequential(nn.Conv2d(3, 3, 1), Fixed()), torch.zeros(2, 3, 2, 2))
    with pytest.raises(gator.GatorError, match="only takes the batch of its example"):
        setup("eager", batch=5).arguments(graph.inputs)


@pytest.mark.parametrize(
    ("cpuinfo", "board", "words"),
    [
        ("processor : 0\nmodel name : Fast 9000\n", "", "Fast 9000 ("),
        (
            "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd08\n",
            "Raspberry Pi 4\0",
            "Raspberry Pi 4 0x41 0xd08 (",
        ),
        ("CPU implementer : 0x41\nCPU part : 0xd40\n", "", "0x41 0xd40 ("),
    ],
)
def test_processors_have_names(cpuinfo, board, words, tmp_path, monkeypatch) -> None:
    for name, text in (("_CPUINFO", cpuinfo), ("_BOARD", board)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(device_name, name, tmp_path / name)
    monkeypatch.setattr(device_name.platform, "system", lambda: "Linux")
    assert device_name.processor().startswith(words)


class Several(nn.Module):
    """Inputs by keyword in another order than in the signature, and one that is not read."""

    def forward(self, x: torch.Tensor, unused: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - 2 * y


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_inputs_go_where_they_belong(name) -> None:
    pytest.importorskip(name)
    call = (), {"y": torch.full((1, 3), 5.0), "x": torch.ones(1, 3), "unused": torch.zeros(1, 3)}
    result = RUNTIMES[name].prepare(Several(), call, setup(name))()
    first = result[0] if name == "onnxruntime" else next(iter(result.values()))
    assert torch.as_tensor(first).tolist() == [[-9.0] * 3]


def test_a_network_that_cannot_be_export_onnx() -> None:
    pytest.importorskip("onnxruntime")

    class Unwritable(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x).real

    with pytest.raises(gator.GatorError, match="cannot be exported to ONNX"):
        export_onnx(Unwritable(), ((torch.eye(3),), {}))


def test_outliers_are_counted() -> None:
    late = iter([1.0] * 12 + [50.0] + [1.0] * 7)

    def run() -> None:
        CLOCK.now += next(late) / 1e3

    (found,) = timed([run], rounds=20, warmup=0, clock=CLOCK, switches=CLOCK.switches)
    assert found.median_ms == pytest.approx(1.0)
    assert found.outliers == 1
    assert found.mean_ms == pytest.approx(1.0)
    assert "1 of 20 rounds far off" in str(found)


def test_slow_moments_count() -> None:
    """However many they are: the mean of a network is that of its layers."""
    for slow in range(1, 20):
        times = iter([1.0] * (20 - slow) + [1.5] * slow)

        def run(times=times) -> None:
            CLOCK.now += next(times) / 1e3

        (found,) = timed([run], rounds=20, warmup=0, clock=CLOCK, switches=CLOCK.switches)
        assert found.mean_ms == pytest.approx(1 + 0.5 * slow / 20)


def test_denormals_are_counted_and_do_not_survive_a_cut() -> None:
    """A cut network has none, so it cannot be slow because of them, and computes what the masked one does."""
    torch.manual_seed(0)
    wide = nn.Sequential(
        nn.Conv2d(16, 64, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(64, 16, 3, padding=1, bias=False)
    ).eval()
    x = torch.randn(4, 16, 24, 24)
    with torch.no_grad():
        wide[2].weight[:, :, 0] = 1e-41
    graph = gator.trace(wide, x)
    found = denormals_of(wide, x)
    assert found.weights == 64 * 16 * 3
    assert "set_flush_denormal" in str(found)
    narrow = gator.cut(wide, graph, {"0": range(56)})
    assert denormals_of(narrow, x).weights == 0
    assert denormals_of(wide, x).weights == found.weights  # the model itself is left as it was
    with torch.no_grad(), gator.masked(wide, graph, {"0": range(56)}):
        torch.testing.assert_close(narrow(x), wide(x), rtol=1e-4, atol=1e-5)


def test_denormals_of_any_network_are_flushed_and_half_precision_is_left_alone() -> None:
    """Weight decay makes new ones after the cut. What is denormal in half precision is no small number."""
    for dtype, left in ((torch.float32, 0.0), (torch.bfloat16, 0.0), (torch.float16, 1e-6)):
        model = nn.BatchNorm1d(3).to(dtype)
        tiny = left or 1e-40
        with torch.no_grad():
            model.weight.fill_(tiny)
            model.running_mean.fill_(-tiny)
        flush_denormals_(model)
        assert model.weight.requires_grad
        assert model.weight.tolist() == pytest.approx([left] * 3, rel=0.1)
        assert model.running_mean.tolist() == pytest.approx([-left] * 3, rel=0.1)


def test_the_older_exporter_failing_leaves_it_to_the_newer(monkeypatch) -> None:
    pytest.importorskip("onnxruntime")
    asked = []
    real = torch.onnx.export

    def export(*args, dynamo, **kwargs):
        asked.append(dynamo)
        if not dynamo:
            raise RuntimeError("no such operator")
        return real(*args, dynamo=dynamo, **kwargs)

    monkeypatch.setattr(torch.onnx, "export", export)
    assert export_onnx(nn.Linear(3, 2), ((torch.zeros(1, 3),), {}))[0]
    assert asked == [False, True]
