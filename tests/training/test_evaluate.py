"""Accuracy and batch-norm statistics against figures worked out another way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gator.training.evaluate import evaluate, recalibrate_
from gator.training.processes import Processes
from gator.training.recipe import RunSettings
from gator.zoo.data import made_up


@pytest.fixture
def processes():
    made = Processes(RunSettings(device="cpu"))
    yield made
    made.close()


def test_accuracy_and_loss_are_means_over_all_examples(processes) -> None:
    data = made_up((4,), 3, batch=5, batches=3)
    network = nn.Linear(4, 3).train()
    found, loss = evaluate(network, data.test, processes, channels_last=False)
    batches = list(data.test.batches(0))
    x, y = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])
    scores = network(x).detach()
    assert found == pytest.approx(100 * float((scores.argmax(1) == y).double().mean()))
    assert loss == pytest.approx(float(nn.functional.cross_entropy(scores, y)), rel=1e-5)
    assert network.training


def test_new_statistics_are_means_over_the_batches(processes) -> None:
    data = made_up((3, 6, 6), 10, batch=8, batches=5)
    norm = nn.BatchNorm2d(3, momentum=0.3)
    network = nn.Sequential(nn.Dropout(0.5), norm, nn.Flatten(), nn.Linear(108, 10)).train()
    norm.running_mean.fill_(7.0)
    recalibrate_(network, data.train, processes, batches=4, channels_last=False)
    first = [x for x, _ in data.train.batches(0)][:4]
    means = torch.stack([x.mean((0, 2, 3)) for x in first]).mean(0)
    variances = torch.stack([x.var((0, 2, 3)) for x in first]).mean(0)
    torch.testing.assert_close(norm.running_mean, means)
    torch.testing.assert_close(norm.running_var, variances)
    assert norm.momentum == 0.3
    assert network.training
    assert norm.training


def test_more_batches_than_an_epoch_has(processes) -> None:
    norm = nn.BatchNorm2d(3)
    data = made_up((3, 6, 6), 10, batch=8, batches=2)
    recalibrate_(nn.Sequential(norm), data.train, processes, batches=5, channels_last=False)
    assert int(norm.num_batches_tracked) == 5
