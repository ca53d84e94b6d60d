"""YOLOv8n and YOLO11n with gates on: Ultralytics' own loss, two image sizes, the class back, predict and export."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from support import gap

import gator

pytest.importorskip("ultralytics")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of its exporter


def detector(name):
    from ultralytics import YOLO
    from ultralytics.utils import DEFAULT_CFG

    torch.manual_seed(0)
    yolo = YOLO(f"{name}.yaml")
    yolo.model.args = DEFAULT_CFG  # as its trainer does
    return yolo


def batch(size):
    return {
        "img": torch.rand(2, 3, size, size),
        "batch_idx": torch.tensor([0.0, 1.0]),
        "cls": torch.tensor([[0.0], [1.0]]),
        "bboxes": torch.tensor([[0.5, 0.5, 0.3, 0.3], [0.4, 0.4, 0.2, 0.2]]),
    }


@pytest.mark.parametrize("name", ["yolov8n", "yolo11n"])
def test_a_detector_is_trained_cut_and_used_as_its_own_class(name, tmp_path, monkeypatch, torchvision):
    monkeypatch.chdir(tmp_path)
    yolo = detector(name)
    model = yolo.model
    signature = inspect.signature(model.forward)
    example = torch.rand(1, 3, 64, 64)
    pruner = gator.Pruner(model, example, target=0.45, steps=8, keep_class=True)
    assert not pruner.unreachable
    assert inspect.signature(model.forward) == signature
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model.train()
    for step in range(8):
        loss, _ = model(batch(64 if step % 2 else 96))
        optimizer.zero_grad()
        (loss.sum() + pruner.loss()).backward()
        optimizer.step()
        pruner.step(lr=1e-3)
    small = pruner.cut().eval()
    pruner.detach()
    assert type(small) is type(model)
    assert gator.measure(small, example).macs <= 0.5 * gator.measure(model, example).macs
    assert small.names == model.names
    assert torch.equal(small.stride, model.stride)
    with gator.masked(model.eval(), pruner.graph, pruner.kept), torch.no_grad():
        for size in (64, 96):
            x = torch.rand(1, 3, size, size)
            assert gap(model(x)[0], small(x)[0]) <= 1e-3
    assert float(small.train()(batch(96))[0].sum().detach()) >= 0
    _used_by_ultralytics(yolo, small)


def _used_by_ultralytics(yolo, small):
    from ultralytics.utils import DEFAULT_CFG_DICT

    small.args = dict(DEFAULT_CFG_DICT)
    yolo.model = small
    found = yolo.predict(np.zeros((64, 64, 3), np.uint8), imgsz=64, verbose=False)
    assert len(found) == 1
    path = yolo.export(format="onnx", imgsz=64, simplify=False, verbose=False)
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    assert session.run(None, {session.get_inputs()[0].name: np.zeros((1, 3, 64, 64), np.float32)})[0].shape[1] == 4 + 80
