"""A cut YOLOv8n as ONNX, OpenVINO and pt2."""

from __future__ import annotations

import pytest
import torch
from support import gap

import gator
from gator.files.formats.by_name import format_of

pytest.importorskip("ultralytics")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def detector(torchvision) -> torch.nn.Module:
    from ultralytics import YOLO

    torch.manual_seed(0)
    model = YOLO("yolov8n.yaml").model.eval()
    graph = gator.trace(model, torch.rand(1, 3, 64, 64), keep_class=True)
    kept = {edge.name: range(max(1, round(0.6 * edge.width))) for edge in graph.edges}
    small = gator.cut(model, graph, kept).train()
    for norm in (module for module in small.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        norm.reset_running_stats()
        norm.momentum = None
    with torch.no_grad():
        small(torch.randn(8, 3, 64, 64))
    return small.eval()


@pytest.mark.parametrize("suffix", [".onnx", ".xml", ".pt2"])
def test_a_detector_agrees_with_pytorch(suffix: str, detector, tmp_path) -> None:
    done = gator.export(detector, torch.zeros(1, 3, 64, 64), tmp_path / f"detector{suffix}")
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = detector(x)[0]
    assert gap(expected, format_of(done.path).open(done.path)(x)[0]) <= 1e-4
    assert done.folded > 50


def test_its_batch_is_free_if_its_head_makes_anchors_anew(detector, tmp_path) -> None:
    head = detector.model[-1]
    head.dynamic = True  # as Ultralytics sets it for its own exports
    try:
        done = gator.export(detector, torch.zeros(1, 3, 64, 64), tmp_path / "detector.onnx")
    finally:
        head.dynamic = False
    assert done.sizes.startswith("any batch size")
