"""The loader's share of a training step: pictures of CIFAR's shape in memory, batch 128, beside ResNet-20 with SGD.

    python benchmarks/loader.py [--rounds 20]

Batches and steps are timed in turn within one run; the share is the median batch over the median of batch and step.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from gator import zoo

LIMIT = 0.05
BATCH = 128


def noise(folder: Path) -> None:
    """The standard files of CIFAR-10, as large as the published ones, with noise in them."""
    random = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        images, labels = random.integers(0, 256, (10_000, 3072), dtype=np.uint8), random.integers(0, 10, 10_000).tolist()
        (folder / name).write_bytes(pickle.dumps({b"data": images, b"labels": labels}, 4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        noise(Path(folder))
        start = time.perf_counter()
        data = zoo.load_data("cifar10", folder=folder, batch=BATCH, verify=False)
        reading = time.perf_counter() - start
    torch.manual_seed(0)
    model = zoo.build("cifar:resnet20").model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    batches, steps = [], []
    source = data.train.batches(0)
    for _ in range(options.rounds + 3):
        start = time.perf_counter()
        x, y = next(source)
        ready = time.perf_counter()
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batches.append(ready - start)
        steps.append(time.perf_counter() - ready)
    batch, step = (1000 * statistics.median(times[3:]) for times in (batches, steps))
    share = batch / (batch + step)
    print(f"{torch.get_num_threads()} threads, {options.rounds} rounds, torch {torch.__version__}; set read in {reading:.1f} s")
    print(f"batch {batch:.2f} ms (the first of the epoch, with its order, {1000 * batches[0]:.1f} ms), step {step:.0f} ms")
    print(f"the loader takes {100 * share:.2f} % of the time, limit {100 * LIMIT:.0f} %")


if __name__ == "__main__":
    main()
