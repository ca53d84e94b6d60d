"""Scikit-learn's digits, in memory, and a plain training loop over them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import gator

BATCH = 64


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test pictures and labels, 1,347 and 450 of them."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1347], order[1347:]
    return x[train], y[train], x[test], y[test]


def batches(x: Tensor, y: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(x), generator=generator)
    for start in range(0, len(order) - BATCH + 1, BATCH):
        part = order[start : start + BATCH]
        moved = functional.pad(x[part], (1, 1, 1, 1), value=-1.0)
        down, right = torch.randint(0, 3, (2,), generator=generator).tolist()
        yield moved[:, :, down : down + 8, right : right + 8], y[part]


def fit(
    model: nn.Module, epochs: int, lr: float, *, seed: int, pruner: gator.Pruner | None = None, cosine: bool = True
) -> None:
    x, y, _, _ = digits()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    total = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total) if cosine else None
    model.train()
    for _ in range(epochs):
        for images, labels in batches(x, y, generator):
            loss = functional.cross_entropy(model(images), labels)
            if pruner is not None:
                loss = loss + pruner.loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if pruner is not None:
                pruner.step(lr=schedule.get_last_lr()[0] if schedule else lr)
            if schedule is not None:
                schedule.step()


def accuracy(model: nn.Module) -> float:
    _, _, x, y = digits()
    model.eval()
    with torch.no_grad():
        return 100 * float((model(x).argmax(1) == y).double().mean())


def recalibrate(model: nn.Module) -> nn.Module:
    """The same network with batch-norm statistics of the training pictures."""
    x, _, _, _ = digits()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over all batches
    model.train()
    with torch.no_grad():
        for part in x.split(128)[:-1]:
            model(part)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model
