"""The table and the plots of the finished runs under results/cifar10, beside the figures of the paper."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gator.report.paper_points import RESNET56, RESNET56_DENSE

RESULTS = Path(__file__).parent / "results" / "cifar10"
LATENCIES = RESULTS.parent / "cifar10-latency.json"
GATES_VERSION = "readers"  # what gates learn from; results of other versions are marked, and made again
PICTURES = Path(__file__).parent.parent / "docs" / "images"
COLORS = {
    "gator": ("#1b7f5c", "Gator"),
    "l1": ("#8a8f98", "one-shot L1"),
    "torch-pruning-l1": ("#c2571a", "Torch-Pruning L1"),
    "torch-pruning-taylor": ("#d9a441", "Torch-Pruning Taylor"),
    "first": ("#5b6fb5", "first channels"),
}
METHODS = tuple(COLORS)


@dataclass(frozen=True)
class Row:
    """The runs of one method with the same network, cost, target and number of epochs; they differ in the seed."""

    runs: tuple[dict[str, Any], ...]

    def __getitem__(self, key: str) -> Any:
        return self.runs[0][key]

    def mean(self, key: str) -> float:
        return statistics.mean(one[key] for one in self.runs)

    def share(self, key: str) -> float:
        return self.mean(key) / self.mean(f"dense_{key}")

    @property
    def latency(self) -> float | None:
        """As a share of the dense network's, on ONNX Runtime; None before these very networks were timed."""
        known = json.loads(LATENCIES.read_text()) if LATENCIES.is_file() else {}
        names = [one["name"] for one in self.runs]
        times = [known[name] for name in names if name in known and known[name]["network"] == fingerprint(_network(name))]
        return statistics.mean(one["ms"] / one["dense_ms"] for one in times) if times else None

    @property
    def change(self) -> float:
        """Of the accuracy, in points."""
        return self.mean("accuracy") - self["dense_accuracy"]

    @property
    def spread(self) -> str:
        if len(self.runs) == 1:
            return ""
        return f" +- {statistics.stdev(one['accuracy'] for one in self.runs):.2f}, {len(self.runs)} seeds"

    @property
    def paper(self) -> str:
        """The paper's change of accuracy at the same FLOPs (or parameters), on a straight line between its two nearest rows.

        With those rows, which were pruned for the same kind of cost.
        """
        if self["network"] != "resnet56" or self["cost"] not in ("flops", "memory"):
            return ""
        of, key = ("FLOPs", "macs") if self["cost"] == "flops" else ("parameters", "params")
        published = [(getattr(p, f"{key}_left"), p.accuracy - RESNET56_DENSE) for p in RESNET56 if p.series == self["cost"]]
        left, known = self.share(key), [(1.0, 0.0), *published]
        if left < min(published)[0]:
            return ""
        larger, smaller = min(one for one in known if one[0] >= left), max(one for one in known if one[0] <= left)
        way = (left - smaller[0]) / max(larger[0] - smaller[0], 1e-9)
        change = smaller[1] + way * (larger[1] - smaller[1])
        ends = " and ".join(f"{change:+.2f} at {share:.3f}" for share, change in dict.fromkeys((larger, smaller)))
        return f"{change:+.2f} ({ends} of the {of})"


def _network(name: str) -> Path:
    return RESULTS / f"{name}.safetensors"


def fingerprint(network: Path) -> str:
    return hashlib.sha256(network.read_bytes()).hexdigest()[:16]


def rows() -> list[Row]:
    grouped: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        usual = {"precision": "bf16", "blocks_removed": [], "gates": GATES_VERSION}
        one = usual | json.loads(path.read_text()) | {"name": path.stem}
        budget = (one["cost"], -one["target"])
        key = (one["network"], *budget, one["epochs"], METHODS.index(one["method"]), one["precision"], one["gates"])
        grouped.setdefault(key, []).append(one)
    return [Row(tuple(grouped[key])) for key in sorted(grouped)]


def table() -> str:
    """In Markdown: a row for every method, network, target and number of epochs; several seeds give a mean and a spread.

    Below it the runs in which whole blocks are removed.
    """
    without = [(one["name"], one["blocks_removed"]) for row in rows() for one in row.runs if one["blocks_removed"]]
    blocks = [f"- Whole blocks removed by `{name}`: {', '.join(f'`{block}`' for block in found)}." for name, found in without]
    return "\n".join([*_lines(), *(["", *blocks] if blocks else [])])


def _lines() -> Iterator[str]:
    found = rows()
    names = ["network", "budget", "epochs", "method", "test %", "change", "after the cut", "MACs", "parameters", "latency"]
    paper = any(row.paper for row in found)
    names += ["paper"] * paper
    yield f"| {' | '.join(names)} |"
    yield f"|{' --- |' * len(names)}"
    for row in found:
        cells = [
            row["network"], f"{row['target']:g} {row['cost']}", row["epochs"],
            row["method"] + ", float32" * (row["precision"] == "no") + ", earlier gates" * (row["gates"] != GATES_VERSION),
            f"{row.mean('accuracy'):.2f}{row.spread}", f"{row.change:+.2f}", f"{row.mean('accuracy_cut'):.2f}",
            f"{row.share('macs'):.3f}", f"{row.share('params'):.3f}", f"{row.latency:.2f}" if row.latency else "",
        ] + [row.paper] * paper  # fmt: skip
        yield f"| {' | '.join(map(str, cells))} |"


def plot() -> None:
    """Accuracy against epochs, and accuracy against MACs and against latency, as pictures for the documentation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = _rows_with(network="resnet20", cost="flops", precision="bf16")
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.8))
    for axis, target in zip(axes, (0.5, 0.25), strict=True):
        for method in METHODS:
            points = [
                (row["epochs"], row.mean("accuracy")) for row in found if (row["method"], row["target"]) == (method, target)
            ]
            _line(axis, method, points)
        axis.set(title=f"ResNet-20 at {target:g} of its MACs", xlabel="epochs in all", ylabel="test accuracy %", xscale="log")
        axis.set_xlim(2.7, 45)
        axis.set_xticks([3, 6, 12, 40], ["3", "6", "12", "40"])
        axis.minorticks_off()
    _write(figure, axes, "epochs.png")
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    epochs = _longest(found)
    for method in METHODS:
        shown = [row for row in found if (row["method"], row["epochs"]) == (method, epochs)]
        dense = [(1.0, found[0]["dense_accuracy"])] if shown else []
        _line(axes[0], method, dense + [(row.share("macs"), row.mean("accuracy")) for row in shown])
        _line(axes[1], method, dense + [(row.latency, row.mean("accuracy")) for row in shown if row.latency])
    star = {"color": COLORS["gator"][0], "marker": "*", "markersize": 13, "linestyle": "", "label": "Gator, for latency"}
    for row in _rows_with(network="resnet20", cost="latency", epochs=epochs):
        if row.latency:
            axes[0].plot(row.share("macs"), row.mean("accuracy"), **star)
            axes[1].plot(row.latency, row.mean("accuracy"), **star)
    axes[0].set(xlabel="MACs, as a share of the dense network's", ylabel="test accuracy %")
    axes[1].set(xlabel="latency on ONNX Runtime, one thread, one image")
    axes[0].set_title(f"ResNet-20, {epochs} epochs in all")
    _write(figure, axes, "pareto.png")


def _rows_with(**wanted: Any) -> list[Row]:
    return [row for row in rows() if all(row[key] == value for key, value in wanted.items())]


def _longest(found: list[Row]) -> int:
    """The largest number of epochs that all of the first three methods have at every target."""
    targets = {row["target"] for row in found}
    done = {(row["epochs"], row["method"], row["target"]) for row in found}
    return max(e for e, *_ in done if all((e, method, target) in done for method in METHODS[:3] for target in targets))


def _line(axis: Any, method: str, points: list[tuple[float, float]]) -> None:
    if points:
        color, name = COLORS[method]
        axis.plot(*zip(*sorted(points), strict=True), marker="o", color=color, label=name, lw=2.4 if method == "gator" else 1.4)


def _write(figure: Any, axes: Any, name: str) -> None:
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(PICTURES / name, dpi=120)
