"""How far off is a latency table? Networks of random widths, measured and predicted, beside the probe and plain FLOPs.

Every measurement is kept in a folder, so that an interrupted run resumes; `--minutes` stops it in time.

    python benchmarks/latency_table.py --threads 1 --only resnet56 --runtime eager --minutes 4
    python benchmarks/latency_table.py --report          # the table, and a scatter plot in latency_table.png
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from stub_torchvision import make_importable

import gator
from gator import zoo
from gator.cost.axis_sizes import full_widths
from gator.cost.latency.fit import fit_of, mape, rank_correlation
from gator.cost.latency.layer_times import LayerTimes
from gator.cost.latency.network_timer import NetworkTimer
from gator.cost.latency.table_prices import TablePrices
from gator.cost.latency.widths import cut_to, random_widths
from gator.cost.timing import rounds_worth, timed, undisturbed

NETWORKS, TOGETHER = 30, 5  # of random widths, and how many are interleaved with the unpruned one
WORTH_MS = 1000  # of timing for every network and pass
SEED = 9413  # not one that tables are fitted to; take another after a change that was decided on these networks


@dataclass(frozen=True)
class Case:
    """A network and the inputs it is measured on."""

    label: str
    name: str
    shape: tuple[int, ...]
    passes: int = 2  # how often every network is measured


CASES = (
    Case("resnet56-b128", "cifar:resnet56", (128, 3, 32, 32)),
    Case("mobilenet_v2-b1", "torchvision:mobilenet_v2", (1, 3, 224, 224)),
    Case("resnet50-b1", "torchvision:resnet50", (1, 3, 224, 224)),
    Case("resnet50-b8", "torchvision:resnet50", (8, 3, 224, 224), passes=1),  # long times vary less
)
RUNTIMES = ("eager", "onnxruntime")
METHODS = ("table", "probe", "FLOPs", "FLOPs fitted")


class OutOfTime(Exception):
    """The time that was asked for is over; what was measured is kept."""


class Run:
    """One network on one runtime; `state` is what was measured so far."""

    def __init__(self, case: Case, runtime: str, options: argparse.Namespace, until: float) -> None:
        self.case, self.until = case, until
        self.file = Path(options.folder) / f"{case.label}-{runtime}.json"
        new = {"measured": [], "seconds": 0.0, "of": [SEED, options.threads, options.networks, case.passes]}
        self.state = json.loads(self.file.read_text()) if self.file.is_file() else new
        if self.state["of"] != new["of"]:
            raise SystemExit(
                f"{self.file} holds another run (seed, threads, networks, passes: {self.state['of']}); give another --folder"
            )
        torch.manual_seed(0)
        self.model = zoo.build(case.name).model.eval()
        self.graph = gator.trace(self.model, torch.zeros(case.shape))
        self.cost = gator.Latency(runtime, threads=options.threads, rounds=options.rounds)
        rounds = options.rounds if case.shape[0] == 1 else max(options.rounds // 3, 1)  # one network per edge takes long enough
        self.probe = gator.Latency(runtime, "probe", threads=options.threads, rounds=rounds)
        self.widths = random_widths(self.graph, options.networks, seed=SEED)

    def save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.state))

    def check_time(self, *_: object) -> None:
        if time.time() > self.until:
            raise OutOfTime

    def go(self) -> None:
        self._build()
        self._measure()
        if "probe" not in self.state:
            self.check_time()
            priced = self.probe.on(self.model, self.graph)
            unpruned = priced.total(full_widths(self.graph))
            self.state["probe"] = [priced.total(widths) / unpruned for widths in self.widths]
            self.save()

    def _build(self) -> None:
        start = time.time()
        try:
            self.cost.build_table(self.model, self.graph, progress=self.check_time)
        finally:
            self.state["seconds"] += time.time() - start
            self.save()

    def _measure(self) -> None:
        """A few networks at a time, interleaved with the unpruned one: beside all of them PyTorch took up to 60 % longer."""
        setup, measured, unpruned = self.cost.setup, self.state["measured"], None
        timer = NetworkTimer(setup, self.graph.inputs, 9)
        while len(measured) < self.case.passes * len(self.widths):
            self.check_time()
            unpruned = unpruned or timer.prepare(cut_to(self.model, self.graph, full_widths(self.graph)))
            first = len(measured) % len(self.widths)
            some = self.widths[first : first + TOGETHER]
            runs = [unpruned, *(timer.prepare(cut_to(self.model, self.graph, widths)) for widths in some)]
            with setup.on():
                rounds = rounds_worth(runs, WORTH_MS, least=5)
                own, *others = undisturbed(lambda: timed(runs, rounds=rounds, warmup=1), tries=4)
            measured += [[other.mean_ms, own.mean_ms] for other in others]
            self.save()

    def predictions(self) -> dict[str, np.ndarray]:
        """Milliseconds by every method, at the speed at which the networks were measured."""
        unpruned_ms = self.passes()[..., 1].mean()
        full = full_widths(self.graph)
        _, table = self.cost.find_table(self.graph)
        layers = LayerTimes(self.graph, table)
        result = fit_of(layers, table)
        priced = TablePrices(layers, result.fit)
        flops = gator.Flops().on(self.model, self.graph)
        found = {"table": np.array([priced.total(w) for w in self.widths]) / result.unpruned_ms * unpruned_ms}
        if "probe" in self.state:
            found["probe"] = np.array(self.state["probe"]) * unpruned_ms
        counted = np.array([flops.total(w) for w in self.widths])
        found["FLOPs"] = counted / flops.total(full) * unpruned_ms
        # With a factor and a constant from the networks that the table was fitted to.
        known = [each for each in table.networks(layers.network) if not each.held_out]
        shares = np.array([1.0, *(each.ms / each.unpruned_ms for each in known)])
        known_flops = np.array([flops.total(full), *(flops.total(each.widths) for each in known)])
        slope, constant = np.linalg.lstsq(np.stack([known_flops / shares, 1 / shares], 1), np.ones(len(shares)), rcond=None)[0]
        found["FLOPs fitted"] = (slope * counted + constant) * unpruned_ms
        return found

    def passes(self) -> np.ndarray:
        return np.array(self.state["measured"]).reshape(self.case.passes, len(self.widths), 2)

    def measured(self) -> np.ndarray:
        """What the networks took in all passes, relative to what the unpruned network took beside them."""
        each, unpruned = np.moveaxis(self.passes().sum(0), 1, 0)
        return each / unpruned * self.passes()[..., 1].mean()


def report(runs: list[Run], folder: Path) -> None:
    methods = " | ".join(f"{method} MAPE | rank" for method in METHODS)
    print(f"| network | runtime | networks | {methods} | built in s |")
    print(f"|{' --- |' * 12}")
    drawn = []
    for run in runs:
        measured = run.measured()
        cells = dict.fromkeys(METHODS, "- | -")
        for method, predicted in run.predictions().items():
            cells[method] = f"{mape(predicted, measured):.1%} | {rank_correlation(predicted, measured):.3f}"
            drawn.append((run, method, predicted, measured))
        runtime = run.cost.runtime
        print(f"| {run.case.label} | {runtime} | {len(measured)} | {' | '.join(cells.values())} | {run.state['seconds']:.0f} |")
    plot(drawn, folder / "latency_table.png")


def plot(drawn: list[tuple[Run, str, np.ndarray, np.ndarray]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = list(dict.fromkeys(run.case.label for run, *_ in drawn))
    runtimes = list(dict.fromkeys(run.cost.runtime for run, *_ in drawn))
    size = (3.4 * len(labels), 3.4 * len(runtimes))
    figure, axes = pyplot.subplots(len(runtimes), len(labels), figsize=size, squeeze=False)
    for axis in axes.flat:
        axis.set_visible(False)
    for run, method, predicted, measured in drawn:
        axis = axes[runtimes.index(run.cost.runtime)][labels.index(run.case.label)]
        axis.set_visible(True)
        colour = f"C{METHODS.index(method)}"
        axis.scatter(measured, predicted, s=10, color=colour, label=method, zorder=3 if method == "table" else 2)
        ends = [0, 1.05 * max(measured)]
        axis.plot(ends, ends, color="grey", linewidth=0.8)
        axis.set_title(f"{run.case.label}, {run.cost.runtime}", fontsize=9)
        axis.set_xlabel("measured ms", fontsize=8)
        axis.set_ylabel("predicted ms", fontsize=8)
    max(axes.flat, key=lambda axis: len(axis.get_legend_handles_labels()[0])).legend(fontsize=8)  # one that has all methods
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"\nplotted in {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--networks", type=int, default=NETWORKS)
    parser.add_argument("--only", default="", help="networks whose label contains this")
    parser.add_argument("--runtime", default="", help="one runtime only")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long; run it again to resume")
    parser.add_argument("--folder", default="runs/latency", help="where measurements and tables are kept")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    options = parser.parse_args()
    os.environ["GATOR_CACHE"] = str(Path(options.folder) / "cache")
    make_importable()
    until = time.time() + 60 * options.minutes
    runs = []
    for case in CASES:
        for runtime in RUNTIMES:
            if options.only in case.label and options.runtime in ("", runtime):
                run = Run(case, runtime, options, until)
                if not options.report:
                    try:
                        run.go()
                    except OutOfTime:
                        print(f"stopped in {case.label} on {runtime}; run again to resume")
                        return
                if len(run.state["measured"]) == run.case.passes * len(run.widths):
                    runs.append(run)
    report(runs, Path(options.folder))


if __name__ == "__main__":
    main()
