"""From the times of layers to the time of a network: factors that are fitted to whole networks of random widths.

A layer inside a network finds its inputs in other caches than a layer alone, pays no call of its own, and is spared a change of
memory layout where its neighbours use the same one. So there is a factor for every group of layers, what a border between two
layers saves, and a constant. Few networks are enough because the factors are drawn towards a common one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gator.cost.latency.layer_times import LEAST_SHARE, LayerTimes, NetworkParts
from gator.cost.latency.table.latency_table import NetworkTime, Table
from gator.cost.prices import Floats
from gator.errors import GatorError

_PULL = 0.2  # of factors towards the common one: 5 % (noise of a network's time) to 25 % (usual distance of a factor)
_ALONE = range(5)  # times the fastest layer, candidates for `alone_ms`: the one with the smallest error on the networks is used


@dataclass(frozen=True)
class LatencyFit:
    """How the layers of one network add up to its time."""

    factors: Mapping[str, float]  # by group of layers
    border_ms: float  # saved per million elements that are passed on in a shared layout
    rest_ms: float
    alone_ms: float  # what a layer takes longer alone than inside a network: a call of the runtime, changes of layout

    def total(self, parts: NetworkParts) -> float:
        """Milliseconds of a network with these parts."""
        layers = sum(self.factors.get(group, 1.0) * ms for group, ms in parts.layers.items())
        return self.rest_ms + max(layers - self.border_ms * parts.borders, LEAST_SHARE * layers)


@dataclass(frozen=True)
class FitResult:
    """A fit, and how far off it is on networks that it was not fitted to."""

    fit: LatencyFit
    title: str  # of the network, for people
    unpruned_ms: float  # of the unpruned network, when it was measured for the table
    fitted_on: int
    tested_on: int
    mape: float
    rank_correlation: float

    def __str__(self) -> str:
        error = f"mean error {self.mape:.1%}, rank correlation {self.rank_correlation:.3f}"
        return (
            f"{self.title}: {self.unpruned_ms:.3g} ms; fitted to {self.fitted_on} networks; {error} on {self.tested_on} others"
        )


def fit_of(layers: LayerTimes, table: Table) -> FitResult:
    """Fit to the measured networks that are not held out, and test on those that are.

    Raises GatorError if the table has none.
    """
    networks = table.networks(layers.network)
    if not any(each.held_out for each in networks):
        raise GatorError("the latency table has no whole networks cut from this one; build it on its device first")
    unpruned_ms = float(np.mean([each.unpruned_ms for each in networks]))
    fit_on = _times((each for each in networks if not each.held_out), unpruned_ms)
    test_on = _times((each for each in networks if each.held_out), unpruned_ms)
    known = [(layers.full_widths, unpruned_ms), *fit_on.items()]
    fits = []
    for alone_ms in (times * layers.fastest_ms for times in _ALONE):
        fits.append(solve([layers.parts(widths, alone_ms) for widths, _ in known], [ms for _, ms in known], alone_ms))
    fit, _ = min(fits, key=lambda found: found[1])
    predicted, measured = [fit.total(layers.parts(widths, fit.alone_ms)) for widths in test_on], list(test_on.values())
    errors = mape(predicted, measured), rank_correlation(predicted, measured)
    return FitResult(fit, networks[0].title, unpruned_ms, len(fit_on), len(test_on), *errors)


def _times(networks: Iterable[NetworkTime], unpruned_ms: float) -> dict[tuple[int, ...], float]:
    """Milliseconds by widths, from all passes, at the speed at which the unpruned network takes `unpruned_ms`."""
    sums: dict[tuple[int, ...], Floats] = {}
    for each in networks:
        sums[each.widths] = sums.get(each.widths, 0.0) + np.array([each.ms, each.unpruned_ms])
    return {widths: unpruned_ms * float(ms / beside) for widths, (ms, beside) in sums.items()}


def solve(parts: Sequence[NetworkParts], measured: Sequence[float], alone_ms: float = 0.0) -> tuple[LatencyFit, float]:
    """The fit to networks with these parts and times, and its mean squared relative error."""
    from scipy.optimize import nnls

    groups = sorted({group for part in parts for group in part.layers})
    relative = 1 / np.asarray(measured)[:, None]  # errors count as shares of a network's time
    layers = relative * np.array([[part.layers.get(group, 0.0) for group in groups] for part in parts])
    others = relative * np.array([[-part.borders, 1.0] for part in parts])
    # First one factor for all layers; then a factor for every group relative to that, and drawn to 1.
    (common, *rest), _ = nnls(np.column_stack([layers.sum(1), others]), np.ones(len(parts)))
    wanted = 1 - others @ rest
    rows = np.vstack([common * layers, _PULL * np.eye(len(groups))])
    factors, _ = nnls(rows, np.concatenate([wanted, np.full(len(groups), _PULL)]))
    error = float(np.square(common * layers @ factors - wanted).mean())
    by_group = dict(zip(groups, (common * factors).tolist(), strict=True))
    return LatencyFit(by_group, float(rest[0]), float(rest[1]), alone_ms), error


def mape(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """The mean absolute percentage error, as a share."""
    return float(np.abs(np.asarray(predicted) / np.asarray(measured) - 1).mean())


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Spearman's rank correlation; nan if all predictions or all measurements are the same."""
    if min(len(set(predicted)), len(set(measured))) < 2:
        return float("nan")
    from scipy.stats import spearmanr

    return float(spearmanr(predicted, measured).statistic)
