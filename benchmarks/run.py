"""What shrinking saves as a run goes on: in an epoch with gates, in a run, and beside plain training for as many epochs.

    python benchmarks/run.py [--rounds 12] [--runs 3] [--threads 1] [--only plain]

The epoch: ResNet-56 (batch 128, 32x32), half of its FLOPs closed; the same network with the closed channels taken out beside
the one that only masks them, steps in turn. The run: ResNet-20 through the paper's rounds with a rising alpha on made-up
pictures, from the first step of gating to the last, with `prune.shrink` true and false, runs in turn. Beside plain training:
ResNet-56 in bf16 for 12 epochs without gates, and for 12 epochs to half of its MACs, 5 of them with gates.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gator
from gator import zoo

BATCH = 128
STEPS = 24  # of an epoch of the whole run


def halved() -> gator.Pruner:
    """A network in training with gates, half of its FLOPs closed for good."""
    model = zoo.build("cifar:resnet56").model.train()
    graph = gator.trace(model, torch.zeros(1, 3, 32, 32))
    kept = gator.one_shot(model, graph, "random", target=0.5)
    pruner = gator.Pruner(model, graph=graph, alpha=1.0, per="example")
    living = [
        torch.isin(torch.arange(edge.width), torch.as_tensor(kept.get(edge.name, range(edge.width)))) for edge in graph.edges
    ]
    pruner.load_state_dict(pruner.state_dict() | {"alive": torch.cat(living)})
    return pruner


def step_of(pruner: gator.Pruner) -> Callable[[], Any]:
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    optimizer = torch.optim.SGD(pruner.model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        loss = functional.cross_entropy(pruner.model(x), y) + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.step(lr=1e-4)

    return step


def epoch_ratio(rounds: int) -> tuple[float, float, float]:
    """Seconds of a step without shrinking; the ratio of one with it, and half the distance between its quartiles."""
    masked = halved()
    shrunk = copy.deepcopy(masked)
    shrunk.shrink_()
    steps = (step_of(masked), step_of(shrunk))
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 2):
        for which in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            steps[which]()
            if turn >= 2:
                times[which].append(time.perf_counter() - start)
    found = [with_it / without for without, with_it in zip(*times, strict=True)]
    quartiles = statistics.quantiles(found, n=4)
    return statistics.median(times[0]), statistics.median(found), (quartiles[2] - quartiles[0]) / 2


def pictures(batch: int) -> tuple[Any, Any]:
    """The data of the whole run: noise of CIFAR's shape."""
    images = torch.randn(BATCH * STEPS, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(images, images[:, 0].mean((1, 2)).mul(1e3).long() % 10)
    return DataLoader(data, batch_size=batch, shuffle=True, drop_last=True), DataLoader(data, batch_size=500)


RECIPE = f"""
name = "shrinking"
model = {{name = "cifar:resnet20"}}
data = {{name = "{Path(__file__).resolve()}:pictures", batch = {BATCH}}}
finetune = {{epochs = 0, recalibrate = 0}}
[prune]
alphas = [1.0, 2.0, 4.0]
epochs = 2
lr = 0.05
schedule = "constant"
gamma = 3.0
per = "example"
"""


def run_seconds(folder: Path, shrink: bool) -> tuple[float, list[float]]:
    """Seconds of all steps with gates, and the share of the cost that was left after every epoch."""
    recipe = folder / "recipe.toml"
    recipe.write_text(f"{RECIPE}shrink = {str(shrink).lower()}\n")
    where = folder / f"run-{len(list(folder.iterdir()))}"
    gator.run(recipe, folder=where)
    lines = [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]
    last = [max(line["seconds"] for line in lines if line["round"] == number) for number in range(3)]
    return sum(last), [line["cost_left"] for line in lines]


PLAIN = f"""
name = "plain"
model = {{name = "cifar:resnet56"}}
data = {{name = "{Path(__file__).resolve()}:pictures", batch = {BATCH}}}
train = {{epochs = 12, lr = 0.02}}
prune = {{epochs = 5, lr = 0.02, target = 0.5}}
finetune = {{epochs = 7, lr = 0.02}}
latency = {{rounds = 1}}
run = {{precision = "bf16", evaluate_every = 0}}
"""


def beside_plain(folder: Path) -> tuple[float, float]:
    """Seconds of all steps of plain training, and of pruning and fine-tuning for as many epochs."""
    recipe = folder / "plain.toml"
    recipe.write_text(PLAIN)
    where = folder / f"run-{len(list(folder.iterdir()))}"
    gator.run(recipe, folder=where)
    seconds = {line["phase"]: line["seconds"] for line in map(json.loads, (where / "metrics.jsonl").read_text().splitlines())}
    return seconds["train"], seconds["prune"] + seconds["finetune"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=["epoch", "run", "plain"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"threads {torch.get_num_threads()}")
    for name, part in {"epoch": print_epoch, "run": print_runs, "plain": print_beside_plain}.items():
        if options.only in (None, name):
            part(options)


def print_epoch(options: argparse.Namespace) -> None:
    seconds, ratio, spread = epoch_ratio(options.rounds)
    print(
        f"epoch at half the FLOPs, ResNet-56: a step takes {1e3 * seconds:.0f} ms without shrinking; "
        f"with it x {ratio:.3f} +- {spread:.3f}"
    )


def print_runs(options: argparse.Namespace) -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.runs):
            taken = {}
            for shrink in (True, False) if turn % 2 else (False, True):
                taken[shrink], left = run_seconds(Path(folder), shrink)
            found.append(taken[True] / taken[False])
            curve = ", ".join(f"{share:.2f}" for share in left)
            print(f"run {turn + 1}: {taken[False]:.1f} s without, {taken[True]:.1f} s with; cost left after each epoch {curve}")
    print(
        f"whole run: x {statistics.median(found):.3f} of the time of all steps with gates, {min(found):.3f} to {max(found):.3f}"
    )


def print_beside_plain(options: argparse.Namespace) -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.runs):
            plain, pruned = beside_plain(Path(folder))
            found.append(pruned / plain)
            print(f"run {turn + 1}: 12 epochs take {plain:.1f} s plain, {pruned:.1f} s to half of the MACs")
    print(f"beside plain training: x {statistics.median(found):.3f}, {min(found):.3f} to {max(found):.3f}")


if __name__ == "__main__":
    main()
