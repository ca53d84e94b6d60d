"""Gator beside other methods on CIFAR-10: one published checkpoint, equal epochs, equal everything else.

    python benchmarks/cifar10.py list                     # the runs, with what is done
    python benchmarks/cifar10.py run NAME                 # one of them; a stopped one is resumed
    python benchmarks/cifar10.py work                     # one after the other; start it twice for two cores
    python benchmarks/cifar10.py latency                  # times the finished networks; leave the machine quiet
    python benchmarks/cifar10.py table                    # the table and the plots from the finished runs

Every method starts from the same checkpoint and has the same number of epochs in all (training with gates included), the same
order of examples for a seed, the same distillation, learning rate, precision (bf16) and batch. Only the share of epochs with
gates is a method's own, chosen on 5,000 held-back training images (NOTES.md). Every network is then trained on all training
images, and the test set is looked at once, after the last epoch. MACs are counted by torch's own counter.
`gator eval benchmarks/results/cifar10/NAME.safetensors --data cifar10 --folder DATA` repeats the figure of a shipped network.

Methods: `gator` (gates, then fine-tuning), `l1` (gator.one_shot on all edges), `torch-pruning-l1` and `torch-pruning-taylor`
(Torch-Pruning chooses the channels, on all groups it can prune), `first` (a uniformly slimmer network that inherits the first
channels of every edge). Needs the data (`--data`) and the weights (`--weights`) on disk.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from cifar10_methods import blocks_removed, by_torch_pruning, first_channels, macs_of
from cifar10_table import GATES_VERSION, LATENCIES, RESULTS, fingerprint, plot, table
from filelock import FileLock, Timeout
from teacher_outputs import cached_outputs

import gator
from gator import Latency, zoo
from gator.cost.latency.network_timer import NetworkTimer
from gator.graph.inputs import describe
from gator.training.recipe_file import recipe_from_text
from gator.zoo.data import load_data

SHARED = Path(__file__).parents[2] / "shared"


@dataclass(frozen=True)
class Experiment:
    """One run: the method, the network, what it is pruned to, in how many epochs."""

    network: str
    method: str
    target: float
    epochs: int
    seed: int = 0
    cost: str = "flops"
    precision: str = "bf16"

    @property
    def name(self) -> str:
        cost = "" if self.cost == "flops" else f"-{self.cost}"
        precision = "" if self.precision == "bf16" else "-float32"
        return f"{self.network}-{self.method}{cost}-{round(100 * self.target)}-{self.epochs}e-s{self.seed}{precision}"


def experiments() -> list[Experiment]:
    """In the order in which they are run: the curves first, then what takes long."""
    plan = []
    three, controls = ("gator", "l1", "torch-pruning-l1"), ("torch-pruning-taylor", "first")
    for epochs in (3, 6, 12):
        for target in (0.5, 0.25):
            plan += [Experiment("resnet20", method, target, epochs) for method in three]
        if epochs == 6:
            plan += [Experiment("resnet20", method, target, 6) for target in (0.5, 0.25) for method in controls]
            plan += [Experiment("resnet20", "gator", 0.6, each, cost="latency") for each in (3, 6, 12)]
            plan += [Experiment("resnet56", method, 0.25, epochs) for method in three]
            plan += [Experiment("resnet56", method, 0.5, epochs) for method in ("gator", "torch-pruning-l1")]
            plan += [Experiment("resnet56", "gator", 0.4, 3, cost="latency")]
            plan += [Experiment("resnet20", method, 0.25, 3, seed) for seed in (1, 2) for method in three]
            plan += [Experiment("resnet20", "gator", 0.5, 3, precision="no")]
    plan += [Experiment("resnet20", "gator", 0.5, 40), Experiment("resnet20", "l1", 0.5, 40)]
    plan += [Experiment("resnet56", method, 0.5, 20) for method in ("torch-pruning-l1", "gator")]
    plan += [Experiment("resnet20", method, 0.25, 40) for method in ("gator", "l1", "torch-pruning-l1")]
    plan += [Experiment("resnet56", "gator", 0.25, 20), Experiment("resnet56", "gator", 0.5, 20, cost="memory")]
    plan += [Experiment("resnet20", method, 0.5, 40, seed) for seed in (1, 2) for method in ("gator", "l1")]
    plan += [Experiment("resnet20", method, 0.5, 40) for method in ("torch-pruning-l1", *controls)]
    plan += [Experiment("resnet20", "gator", 0.5, 40, cost="memory")]
    return plan


# The learning rate of 3 epochs, and that few epochs with gates are best, were found on held-back images (NOTES.md); for longer
# runs all methods have the same learning rate.
GATED = {3: 0.15, 6: 0.3, 12: 0.5, 20: 1, 40: 2}  # epochs on the schedule of the target, of so many in all
LEARNING_RATES = {3: 0.02, 6: 0.03, 12: 0.05, 20: 0.05, 40: 0.05}


def recipe_of(one: Experiment, data: str, weights: str, hold_back: int = 0) -> gator.Recipe:
    criterion = {"gator": "", "l1": "l1"}.get(one.method, "function")
    gated = math.ceil(gated_epochs(one))
    phase = f"lr = {LEARNING_RATES[one.epochs]}\nnesterov = true\nweight_decay = 5e-4\ndistill = 0.7\ntemperature = 4.0\n"
    return recipe_from_text(f"""
name = "{one.name}"
seed = {one.seed}
[model]
name = "cifar:{one.network}"
weights = "{weights}/cifar10-{one.network}.safetensors"
[data]
name = "cifar10"
folder = "{data}"
batch = 128
hold_back = {hold_back}
[prune]
cost = "{one.cost}"
target = {one.target}
epochs = {gated}
gated = {gated_epochs(one) / gated if gated else 1.0}
round_to = {'"auto"' if one.cost == "latency" else 1}
{f'criterion = "{criterion}"' if criterion else ""}
{phase}
[finetune]
epochs = {one.epochs - gated}
{phase}
[latency]
runtime = "{"onnxruntime" if one.cost == "latency" else "eager"}"
rounds = 30
threads = 1
[run]
precision = "{one.precision}"
threads = 1
evaluate_every = 0
""")


def gated_epochs(one: Experiment) -> float:
    return GATED[one.epochs] if one.method == "gator" else 0


def folder_of(one: Experiment, options: argparse.Namespace) -> Path:
    """The run folder. Other versions of the gates and other lengths of the gated phase have folders of their own."""
    version = f"-{GATES_VERSION}-{gated_epochs(one):g}" if one.method == "gator" else ""
    return Path(options.folder) / f"{one.name}{version}"


def run(one: Experiment, options: argparse.Namespace) -> None:
    """Carry out or resume one run, and put its network and its figures into the results."""
    folder = folder_of(one, options)
    recipe = recipe_of(one, options.data, options.weights)
    choose = None
    if one.method.startswith("torch-pruning"):
        train = load_data("cifar10", folder=options.data, batch=128, seed=one.seed).train
        choose = by_torch_pruning(one.method.rpartition("-")[2], [b for b, _ in zip(train.batches(0), range(8), strict=False)])
    elif one.method == "first":
        choose = first_channels
    torch.set_num_threads(1)
    if not (folder / "result.json").is_file():
        started = (folder / "recipe.toml").is_file()
        with cached_outputs(Path(options.folder) / "teachers" / f"{one.network}-s{one.seed}-{one.precision}.sqlite"):
            gator.resume(folder, choose=choose) if started else gator.run(recipe, folder=folder, choose=choose)
    result = json.loads((folder / "result.json").read_text())
    network = gator.load(folder / result["rounds"][0]["file"], zoo.build(f"cifar:{one.network}").model)
    dense = zoo.build(f"cifar:{one.network}").model
    figures = result["rounds"][0]["figures"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / result["rounds"][0]["file"], RESULTS / f"{one.name}.safetensors")
    content = {
        **asdict(one),
        **({"gates": GATES_VERSION} if one.method == "gator" else {}),
        "accuracy": figures["accuracy"],
        "accuracy_cut": result["rounds"][0]["accuracy_cut"],
        "dense_accuracy": result["before"]["accuracy"],
        "macs": macs_of(network),
        "dense_macs": macs_of(dense),
        "params": sum(p.numel() for p in network.parameters()),
        "dense_params": sum(p.numel() for p in dense.parameters()),
        "blocks_removed": blocks_removed(dense, network),
        "lr": LEARNING_RATES[one.epochs],
        "gated_epochs": gated_epochs(one),
    }
    (RESULTS / f"{one.name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"{one.name}: {figures['accuracy']:.2f} % with {content['macs'] / content['dense_macs']:.3f} of the MACs", flush=True)


def time_all() -> None:
    """Time every finished network beside the dense one, in turn, on ONNX Runtime with one thread and one image."""
    example = torch.randn(1, 3, 32, 32)
    timer = NetworkTimer(Latency(runtime="onnxruntime", threads=1).setup, describe(example), rounds=50)
    found = {"conditions": timer.conditions}
    for path in sorted(RESULTS.glob("*.safetensors")):
        network, dense = gator.load(path), zoo.build(f"cifar:{path.stem.partition('-')[0]}").model
        # About one measurement in nine is disturbed, by up to a fifth: the better of two counts.
        measured = [timer.accurate_times([timer.prepare(each.eval()) for each in (dense, network)]) for _ in range(2)]
        before, after = min(measured, key=lambda pair: pair[1].median_ms / pair[0].median_ms)
        found[path.stem] = {
            "network": fingerprint(path),
            "ms": round(after.median_ms, 4),
            "dense_ms": round(before.median_ms, 4),
            "spread": round(after.spread_ms, 4),
        }
        print(f"{path.stem}: {after.median_ms / before.median_ms:.3f} of the dense network's time", flush=True)
    LATENCIES.write_text(json.dumps(found, indent=1) + "\n")


def work(options: argparse.Namespace) -> None:
    """The runs that no other process is running, one after the other."""
    for one in experiments():
        if not is_done(one):
            run_alone(one, options)


def is_done(one: Experiment) -> bool:
    """Whether the network is among the results, made by these gates in so many epochs. Others are to be made again."""
    path = RESULTS / f"{one.name}.json"
    if not path.is_file():
        return False
    found = json.loads(path.read_text())
    return found.get("gates", GATES_VERSION) == GATES_VERSION and found["gated_epochs"] == gated_epochs(one)


def run_alone(one: Experiment, options: argparse.Namespace) -> None:
    """Carry out one run, unless another process is running it and holds the lock."""
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(Path(options.folder) / f"{one.name}.lock", timeout=0):
            run(one, options)
    except Timeout:
        print(f"{one.name}: another process is running it", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "run", "work", "latency", "table"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", default=os.environ.get("CIFAR10", "data"), help="the folder with cifar-10-batches-py")
    parser.add_argument("--weights", default=str(SHARED / "weights"))
    parser.add_argument("--folder", default="runs/cifar10", help="where run folders are")
    options = parser.parse_args()
    plan = {one.name: one for one in experiments()}
    if options.command == "list":
        for name, one in plan.items():
            state = "done" if is_done(one) else "started" if folder_of(one, options).is_dir() else ""
            print(f"{name:44} {state}")
    elif options.command == "run":
        for name in options.names:
            run_alone(plan[name] if name in plan else sys.exit(f"{name} is not in the list"), options)
    elif options.command == "work":
        work(options)
    elif options.command == "latency":
        time_all()
    else:
        print(table())
        plot()


if __name__ == "__main__":
    main()
