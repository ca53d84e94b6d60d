"""YOLOv8n of Ultralytics, trained on made-up pictures and pruned to half of its MACs: the mAP before and after.

    pip install 'torch-gator[ultralytics]'      # Ultralytics is AGPL-3.0
    python examples/yolo.py

The pictures show red and blue rectangles. Nothing is downloaded: the network starts from its YAML file, not from weights.
"""

import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch
from ultralytics import YOLO

import gator
from gator.integrations.ultralytics import pruning_trainer

SIZE = 64


def make_data(folder: Path) -> str:
    """Pictures and labels in the layout of Ultralytics; returns the YAML file."""
    random = np.random.default_rng(0)
    for part, count in (("train", 128), ("val", 32)):
        (folder / "images" / part).mkdir(parents=True)
        (folder / "labels" / part).mkdir(parents=True)
        for index in range(count):
            picture = random.integers(100, 120, (SIZE, SIZE, 3)).astype(np.uint8)
            width, height = random.integers(SIZE // 3, 2 * SIZE // 3, 2)
            left, top = random.integers(0, SIZE - width), random.integers(0, SIZE - height)
            name = index % 2
            picture[top : top + height, left : left + width] = (230, 30, 30) if name == 0 else (30, 30, 230)
            box = (left + width / 2, top + height / 2, width, height)
            cv2.imwrite(str(folder / "images" / part / f"{index}.png"), picture)
            (folder / "labels" / part / f"{index}.txt").write_text(" ".join([str(name), *(str(x / SIZE) for x in box)]))
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [blue, red]\n")
    return str(folder / "data.yaml")


with tempfile.TemporaryDirectory() as folder:
    data = make_data(Path(folder, "data"))
    # Settings for a minute on a CPU; yours are those that you train with anyway.
    settings = {
        "data": data, "imgsz": SIZE, "batch": 16, "nbs": 16, "optimizer": "AdamW", "lr0": 0.002, "warmup_epochs": 0.0,
        "mosaic": 0.0, "scale": 0.0, "translate": 0.0, "erasing": 0.0, "project": folder, "device": "cpu", "val": False,
        "plots": False, "verbose": False,
    }  # fmt: skip
    validation = {"data": data, "imgsz": SIZE, "device": "cpu", "plots": False, "verbose": False}

    dense = YOLO("yolov8n.yaml")
    dense.train(epochs=16, name="dense", **settings)
    before = dense.val(**validation).box.map50

    # The only new thing: the trainer. Gates are on for the first half of the epochs, the others train what is left.
    YOLO(f"{folder}/dense/weights/last.pt").train(
        epochs=10, name="small", trainer=pruning_trainer(target=0.5, gated=0.5), **settings
    )
    small = YOLO(f"{folder}/small/weights/last.pt")  # an ordinary file
    after = small.val(**validation).box.map50
    found = small.predict(f"{folder}/data/images/val/0.png", imgsz=SIZE, device="cpu", verbose=False)

picture = torch.zeros(1, 3, SIZE, SIZE)
share = gator.measure(small.model.float(), picture).macs / gator.measure(dense.model.float(), picture).macs
print(f"mAP50 {before:.3f}; at {share:.2f} of the MACs {after:.3f}; boxes in the first picture: {len(found[0].boxes)}")

assert share <= 0.5
assert before > 0.5
assert after > 0.7 * before
