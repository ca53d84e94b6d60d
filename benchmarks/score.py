"""The shipped network, scored: accuracy on the 10,000 test images of CIFAR-10, multiply-adds and parameters.

    python benchmarks/score.py FOLDER [NETWORK]

FOLDER holds cifar-10-batches-py; NETWORK is a file that gator.save wrote of a ResNet-20, by default the one under results/.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import gator
from gator import zoo

SHIPPED = Path(__file__).parent / "results" / "cifar10-resnet20-half.safetensors"


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    network = gator.load(Path(sys.argv[2]) if len(sys.argv) == 3 else SHIPPED, zoo.build("cifar:resnet20").model).eval()
    data = zoo.load_data("cifar10", folder=sys.argv[1])
    right = seen = 0
    with torch.inference_mode():
        for x, y in data.test.batches(0):
            right += int((network(x).argmax(1) == y).sum())
            seen += len(y)
    one = torch.zeros(1, 3, 32, 32)
    dense, small = gator.measure(zoo.build("cifar:resnet20").model, one), gator.measure(network, one)
    print(f"accuracy {100 * right / seen:.2f} % of {data.tested_on}")
    print(f"{small.macs:,} MACs of {dense.macs:,} ({small.macs / dense.macs:.4f})")
    print(f"{small.params:,} parameters of {dense.params:,}")


if __name__ == "__main__":
    main()
