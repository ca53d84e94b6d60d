"""YOLO pruned inside the trainer of Ultralytics: the run resumes, its file is an ordinary one, and bad use is explained."""

from __future__ import annotations

import pickletools
import zipfile

import numpy as np
import pytest
import torch

import gator

pytest.importorskip("ultralytics")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SETTINGS = {"imgsz": 32, "batch": 8, "device": "cpu", "plots": False, "verbose": False, "mosaic": 0.0, "name": "run"}


@pytest.fixture(scope="module")
def library():
    from ultralytics_offline import make_usable

    make_usable()
    from gator.integrations import ultralytics

    return ultralytics


@pytest.fixture(scope="module")
def data(library, tmp_path_factory):
    import cv2

    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        (folder / "images" / part).mkdir(parents=True)
        (folder / "labels" / part).mkdir(parents=True)
        for index in range(16):
            cv2.imwrite(str(folder / "images" / part / f"{index}.png"), random.integers(0, 255, (32, 32, 3)).astype(np.uint8))
            (folder / "labels" / part / f"{index}.txt").write_text("0 0.5 0.5 0.4 0.4")
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [thing]\n")
    return str(folder / "data.yaml")


def yolo(path="yolov8n.yaml"):
    from ultralytics import YOLO

    return YOLO(path)


def macs(model):
    return gator.measure(model.float(), torch.zeros(1, 3, 32, 32)).macs


@pytest.fixture(scope="module")
def run(library, data, tmp_path_factory):
    """A run of three epochs, two with gates, that was stopped after the first and resumed."""
    folder = tmp_path_factory.mktemp("runs")

    class Stopped(Exception):
        pass

    def stop(trainer):
        raise Stopped

    first = yolo()
    first.add_callback("on_model_save", stop)
    trainer = library.pruning_trainer(0.6, gated=0.7)
    with pytest.raises(Stopped):
        first.train(data=data, epochs=3, project=str(folder), trainer=trainer, **SETTINGS)
    resumed = yolo(folder / "run" / "weights" / "last.pt")
    resumed.train(resume=True, trainer=library.pruning_trainer(0.6, gated=0.7))
    return folder / "run"


def classes_of_gator(path):
    with zipfile.ZipFile(path) as file:
        (name,) = [each for each in file.namelist() if each.endswith("data.pkl")]
        words = [str(arg) for _, arg, _ in pickletools.genops(file.read(name)) if arg is not None]
    assert any(word.startswith("ultralytics.") for word in words)
    return [word for word in words if word.startswith("gator.")]


def test_the_file_is_an_ordinary_one(library, data, run):
    small = yolo(run / "weights" / "best.pt")
    assert type(small.model).__name__ == "DetectionModel"
    assert macs(small.model) <= 0.6 * macs(yolo().model)
    assert small.val(data=data, **SETTINGS | {"batch": 4}).box.map50 >= 0
    assert len(small.predict(np.zeros((32, 32, 3), np.uint8), imgsz=32, verbose=False)) == 1
    assert not classes_of_gator(run / "weights" / "best.pt")  # it loads without this package
    header, *rows = [line.split(",") for line in (run / "results.csv").read_text().splitlines()]
    left = [float(row[header.index("gator/cost_left")]) for row in rows]
    assert len(left) == 3
    assert left == sorted(left, reverse=True)
    assert left[-1] <= 0.6


def test_a_pruned_network_is_trained_further(library, data, run, tmp_path):
    path = run / "weights" / "last.pt"
    before = macs(yolo(path).model)
    again = yolo(path)
    again.train(data=data, epochs=1, project=str(tmp_path), trainer=library.finetuning_trainer(), **SETTINGS)
    assert macs(again.model) == before
    assert not classes_of_gator(tmp_path / "run" / "weights" / "last.pt")
    with pytest.raises(gator.GatorError, match="no pruned network"):
        yolo().train(data=data, epochs=1, project=str(tmp_path), trainer=library.finetuning_trainer(), **SETTINGS)


def test_a_callback_alone_prunes(library, data, tmp_path):
    start = yolo()
    library.PruneCallback(0.6, gated=1.0).add_to(start)
    start.train(data=data, epochs=1, project=str(tmp_path), **SETTINGS)
    assert macs(start.model) <= 0.6 * macs(yolo().model)
    with pytest.raises(gator.GatorError, match="a callback cannot resume"):
        start.train(resume=str(tmp_path / "run" / "weights" / "last.pt"))


def test_bad_use_is_explained(library, data, tmp_path):
    def train(path="yolov8n.yaml", callbacks=(), **settings):
        start = yolo(path)
        for callback in callbacks:
            callback.add_to(start)
        start.train(**{"data": data, "epochs": 2, "project": str(tmp_path), **SETTINGS, **settings})

    with pytest.raises(gator.GatorError, match="gated=0"):
        library.pruning_trainer(0.5, gated=0)
    with pytest.raises(gator.GatorError, match="a second PruneCallback"):
        train(callbacks=[library.PruneCallback(0.6), library.PruneCallback(0.6)])
    with pytest.raises(gator.GatorError, match="not time="):
        train(trainer=library.pruning_trainer(0.6), time=1.0)
    with pytest.raises(gator.GatorError, match="compile=False"):
        train(trainer=library.pruning_trainer(0.6), compile=True)

    class Replacing(library.detect.DetectionTrainer):
        def preprocess_batch(self, batch):
            self.model = self.get_model(cfg=self.model.yaml, verbose=False)
            self.model.args = self.args
            return super().preprocess_batch(batch)

    with pytest.raises(gator.GatorError, match="replaced its model"):
        train(trainer=library.pruning_trainer(0.6, base=Replacing))
