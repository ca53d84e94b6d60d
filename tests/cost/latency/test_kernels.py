"""A network pruned with default settings keeps the fast kernels of ONNX Runtime: no layer leaves its blocked layout."""

from __future__ import annotations

import pytest
import torch
from separable import separable_network
from torch import nn

import gator
from gator.cost.latency.runtimes.onnx_runtime import export_onnx

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def convolutions(model: nn.Module, x: torch.Tensor, path) -> list[str]:
    """The domains of the convolution kernels that ONNX Runtime chooses; those of the blocked layout have one of their own."""
    written, _ = export_onnx(model.eval(), ((x,), {}))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    onnxruntime.InferenceSession(written, options, providers=["CPUExecutionProvider"])
    found = [node.domain for node in onnx.load(str(path)).graph.node if "Conv" in node.op_type]
    assert len(found) >= 11
    return found


@pytest.mark.parametrize("how", ["l1", "random"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_convolution_leaves_the_blocked_layout(how, seed, tmp_path) -> None:
    torch.manual_seed(seed)
    model, x = separable_network(), torch.randn(1, 3, 64, 64)
    if set(convolutions(model, x, tmp_path / "dense.onnx")) != {"com.microsoft.nchwc"}:
        pytest.skip("ONNX Runtime has no blocked layout on this processor")
    graph = gator.trace(model, x)
    kept = gator.one_shot(model, graph, how, target=0.4, seed=seed)
    small = gator.cut(model, graph, kept)
    assert gator.measure(small, x).macs <= 0.4 * gator.measure(model, x).macs
    assert set(convolutions(small, x, tmp_path / "small.onnx")) == {"com.microsoft.nchwc"}


def test_odd_widths_do_leave_it(tmp_path) -> None:
    """What the default prevents: with single channels as steps some convolutions fall back."""
    torch.manual_seed(0)
    model, x = separable_network(), torch.randn(1, 3, 64, 64)
    if set(convolutions(model, x, tmp_path / "dense.onnx")) != {"com.microsoft.nchwc"}:
        pytest.skip("ONNX Runtime has no blocked layout on this processor")
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, gator.one_shot(model, graph, "random", target=0.4, round_to=1))
    assert set(convolutions(small, x, tmp_path / "small.onnx")) != {"com.microsoft.nchwc"}
