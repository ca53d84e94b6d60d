"""The figures that the paper and its authors published for the experiments that recipes/ repeats."""

from __future__ import annotations

from dataclasses import dataclass

from gator.training.recipe import Recipe

_PAPER = "Passov, David, Netanyahu, ICANN 2021"
_TABLE_2, _TABLE_3, _TABLE_4 = (f"{_PAPER}, table {number}" for number in (2, 3, 4))
_FILE = "the results file of the paper's authors"
_RESNET50_MACS = 4.09e9  # table 3 gives FLOPs in absolute figures


@dataclass(frozen=True)
class PaperPoint:
    """A published network; what it has left is a share of its dense network."""

    series: str  # the cost it was pruned for
    alpha: float
    accuracy: float  # %, top 1
    macs_left: float
    latency_left: float | None
    params_left: float | None
    source: str

    @property
    def name(self) -> str:
        return f"{self.series} {self.alpha:g}"


def _cifar(series: str, alpha: float, accuracy: float, macs_cut: float, params_cut: float, source: str) -> PaperPoint:
    return PaperPoint(series, alpha, accuracy, 1 - macs_cut / 100, None, 1 - params_cut / 100, source)


def _imagenet(series: str, alpha: float, accuracy: float, macs_cut: float, speed_up: float) -> PaperPoint:
    return PaperPoint(series, alpha, accuracy, 1 - macs_cut / 100, 1 / speed_up, None, _TABLE_2)


def _small(alpha: float, accuracy: float, macs: float, speed_up: float) -> PaperPoint:
    return PaperPoint("latency", alpha, accuracy, macs / _RESNET50_MACS, 1 / speed_up, None, _TABLE_3)


RESNET56_DENSE = 93.63  # %
RESNET56: tuple[PaperPoint, ...] = (
    _cifar("flops", 0.25, 93.84, 16.4, 15.0, _FILE),
    _cifar("flops", 0.5, 93.52, 31.5, 24.7, _FILE),
    _cifar("flops", 1, 93.58, 43.39, 33.5, _TABLE_4),
    _cifar("flops", 2, 93.14, 54.62, 44.4, _TABLE_4),
    _cifar("flops", 4, 92.69, 63.7, 55.5, _FILE),
    _cifar("flops", 8, 92.44, 72.3, 64.8, _FILE),
    _cifar("flops", 16, 91.50, 79.33, 73.4, _TABLE_4),
    _cifar("memory", 0.25, 93.66, 33.21, 42.7, _TABLE_4),
    _cifar("memory", 0.5, 92.59, 57.98, 75.1, _TABLE_4),
    _cifar("memory", 2, 90.99, 76.05, 90.9, _TABLE_4),
)
RESNET50: tuple[PaperPoint, ...] = (
    _imagenet("latency", 0.25, 76.00, 26.75, 1.310),
    _imagenet("latency", 0.5, 75.28, 48.27, 1.647),
    _imagenet("latency", 1, 74.24, 61.17, 1.857),
    _imagenet("flops", 0.25, 75.89, 31.48, 1.200),
    _imagenet("flops", 0.5, 75.19, 49.91, 1.442),
    _imagenet("flops", 1, 74.14, 62.64, 1.612),
    _imagenet("flops", 2, 72.36, 76.57, 2.106),
    _small(2, 72.69, 973e6, 2.273),
    _small(4, 69.48, 551e6, 2.959),
    _small(16, 61.07, 191e6, 4.777),
    _small(20, 56.89, 134e6, 5.404),
)


def paper_points(recipe: Recipe) -> tuple[PaperPoint, ...]:
    """The published points for the network, data and cost of a recipe; none if the paper has no such experiment."""
    if (recipe.model.name, recipe.data.name) == ("cifar:resnet56", "cifar10"):
        found = RESNET56
    elif recipe.model.name == "torchvision:resnet50" and recipe.name.startswith("imagenet"):
        found = RESNET50
    else:
        return ()
    return tuple(point for point in found if point.series == recipe.prune.cost)
