"""Prune, then quantise: first channels go, then ONNX Runtime stores and computes what is left in 8 bits.

    pip install 'torch-gator[train,onnx]'
    python examples/quantise_onnx.py

Shows the accuracy and the size of the file after each step.
"""

from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import gator
from gator import zoo

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
train = torch.arange(len(labels)) % 4 > 0


def steps(network: nn.Module, count: int, lr: float, pruner: gator.Pruner | None = None) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, count)
    indices = train.nonzero().flatten()
    network.train()
    for _ in range(count):
        batch = indices[torch.randint(len(indices), (64,))]
        loss = functional.cross_entropy(network(images[batch]), labels[batch])
        if pruner is not None:
            loss = loss + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if pruner is not None:
            pruner.step()


def export(network: nn.Module, path: str) -> str:
    torch.onnx.export(
        network.eval(), (images[:2],), path, dynamo=True, external_data=False, verbose=False, input_names=["x"],
        dynamic_shapes=[{0: torch.export.Dim("batch")}],
    )  # fmt: skip
    return path


def accuracy(path: str) -> float:
    """Of an ONNX file, on the test pictures."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    scores = session.run(None, {"x": images[~train].numpy()})[0]
    return float((scores.argmax(1) == labels[~train].numpy()).mean())


class Calibration(CalibrationDataReader):
    """Training pictures, from which the ranges of the activations are taken."""

    def __init__(self) -> None:
        self.batches = iter(images[train][:256].numpy().reshape(8, 32, 1, 8, 8))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"x": batch}


model = zoo.build("digits:resnet").model  # any network
steps(model, 120, lr=0.1)
dense = export(model, "dense.onnx")

pruner = gator.Pruner(model, images[:1], target=0.5, steps=100)
steps(model, 100, lr=0.1, pruner=pruner)
network = pruner.cut()
steps(network, 100, lr=0.05)
pruned = export(network, "pruned.onnx")

quant_pre_process(pruned, "prepared.onnx")  # batch norms are folded into the convolutions
quantised = "quantised.onnx"
quantize_static(
    "prepared.onnx", quantised, Calibration(), quant_format=QuantFormat.QDQ, per_channel=True,
    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
)  # fmt: skip

found = {name: (accuracy(name), Path(name).stat().st_size) for name in (dense, pruned, quantised)}
for name, (share, size) in found.items():
    print(f"{name:15} accuracy {share:.3f}  {size:8,} bytes")

assert gator.measure(network, images[:1]).macs <= 0.5 * gator.measure(model, images[:1]).macs
assert found[pruned][0] > 0.9
assert found[quantised][0] > found[pruned][0] - 0.05
assert found[quantised][1] < found[pruned][1] < found[dense][1]
