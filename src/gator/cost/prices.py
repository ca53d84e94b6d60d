"""The interface between costs and the code that uses them: `Cost` looks at a network once and gives its `Prices`.

Every caller relies on these two classes and on nothing else. Their defaults are right for costs that are counted exactly; a
cost that is measured overrides what differs. An object of a user with only the required methods is wrapped once, by `as_cost`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gator.errors import GatorError
from gator.graph.hypergraph import Hypergraph

Widths = Sequence[int] | NDArray[Any]  # living channels, one number per edge, in the order of graph.edges
Floats = NDArray[np.float64]
PlainData = dict[str, Any]  # what JSON can hold
_FACTOR = "measured_factor"  # in the state of prices that were corrected by a factor
_LOOKED_AT = 8  # smaller widths of an edge at which `Prices.savings` evaluates the cost, and the narrowest that is left


class Prices(ABC):
    """What one network costs as a function of its living widths."""

    unit: str = ""  # of `total`: "MACs", "bytes", "ms", ...
    tolerance: float = 0.0
    """0: `total` is taken as exact. Above 0 it is an estimate: a network meets a target if `measure` gives at most the target,
    and is close enough to it if that is below the target by at most this share."""
    width_step: int = 1
    """How many channels the device's kernels process as one block; 1 if no width is better than its neighbours."""

    @abstractmethod
    def total(self, widths: Widths) -> float:
        """What the network costs with these living widths."""

    @abstractmethod
    def per_channel(self, widths: Widths) -> Floats:
        """What one channel of every edge costs, given the living widths everywhere (lambda of eq. 5 and 6)."""

    def savings(self, widths: Widths, lower: Sequence[NDArray[np.int64]]) -> list[Floats]:
        """What is saved if one edge alone becomes narrower, for every edge and each of its widths in `lower`, the widest first.

        `total` is evaluated at a few widths and interpolated between them. The last two are among them, because the last
        channel may take a layer with it.
        """
        now, cost = np.asarray(widths, dtype=np.int64), self.total(widths)

        def saved(edge: int, narrower: NDArray[np.int64]) -> Floats:
            last = len(narrower) - 1
            spread = np.geomspace(1, last + 1, min(_LOOKED_AT, last + 1)).round().astype(np.int64) - 1
            places = np.union1d(spread, [max(last - 1, 0)])
            trials = (np.where(np.arange(len(now)) == edge, width, now) for width in narrower[places])
            found = [0.0, *(cost - self.total(trial) for trial in trials)]
            removed = now[edge] - narrower
            result: Floats = np.interp(removed, [0, *removed[places]], found)
            return result

        return [saved(edge, each) if len(each) else np.zeros(0) for edge, each in enumerate(lower)]

    @property
    def measures(self) -> bool:
        """Whether `measure` may say something else than `total`; if not, no network has to be built for it."""
        return type(self).measure is not Prices.measure

    def measure(self, network: nn.Module, widths: Widths) -> float | None:  # noqa: ARG002
        """What a finished network of these widths really costs; None if `total(widths)` is the truth."""
        return None

    def recalibrated(self, widths: Widths, measured: float) -> Prices:
        """The same prices, corrected so that `total(widths)` is what a network of these widths was measured to cost.

        By default they are multiplied by a factor. Prices that cannot be corrected at these widths stay as they are.
        """
        estimate = self.total(widths)
        return _ScaledPrices(self, measured / estimate) if estimate > 0 and measured > 0 and measured != estimate else self

    def state(self) -> PlainData:
        """What `Cost.restored` needs to give these prices again for the same network; goes into checkpoints."""
        return {}

    def state_for_cut(self, model: nn.Module, graph: Hypergraph) -> PlainData:  # noqa: ARG002
        """What `Cost.restored` needs for `model`, a network that was cut from the one with these prices."""
        return self.state()


class _ScaledPrices(Prices):
    """Estimated prices times a factor that a measurement has shown. The factor is part of their state."""

    def __init__(self, prices: Prices, factor: float) -> None:
        self._prices, self._factor = prices, factor
        self.unit, self.tolerance = prices.unit, prices.tolerance

    def total(self, widths: Widths) -> float:
        return self._factor * self._prices.total(widths)

    def per_channel(self, widths: Widths) -> Floats:
        return self._factor * self._prices.per_channel(widths)

    def savings(self, widths: Widths, lower: Sequence[NDArray[np.int64]]) -> list[Floats]:
        return [self._factor * each for each in self._prices.savings(widths, lower)]

    @property
    def width_step(self) -> int:  # type: ignore[override]
        return self._prices.width_step

    @property
    def measures(self) -> bool:
        return self._prices.measures

    def measure(self, network: nn.Module, widths: Widths) -> float | None:
        return self._prices.measure(network, widths)

    def recalibrated(self, widths: Widths, measured: float) -> Prices:
        return self._prices.recalibrated(widths, measured) if self.total(widths) > 0 and measured > 0 else self

    def state(self) -> PlainData:
        return {**self._prices.state(), _FACTOR: self._factor}

    def state_for_cut(self, model: nn.Module, graph: Hypergraph) -> PlainData:
        return {**self._prices.state_for_cut(model, graph), _FACTOR: self._factor}


class Cost(ABC):
    """A quantity to reduce: FLOPs, memory, latency, or one of your own."""

    unit: str = ""

    @abstractmethod
    def on(self, model: nn.Module, graph: Hypergraph) -> Prices:
        """The prices of a network."""

    def restored(self, model: nn.Module, graph: Hypergraph, state: PlainData) -> Prices:  # noqa: ARG002
        """The prices of a network that was priced before, or was cut from one that was; `state` is what those prices saved."""
        return self.on(model, graph)


def prices_of(cost: Cost, model: nn.Module, graph: Hypergraph) -> Prices:
    """The prices of a network as it is, checked: a user's cost may return anything."""
    prices = cost.on(model, graph)
    widths = [edge.width for edge in graph.edges]
    total, name = prices.total(widths), type(cost.cost if isinstance(cost, _WrappedCost) else cost).__name__
    if not isinstance(total, Real) or not 0 < float(total) < math.inf:
        raise GatorError(f"{name}: total(widths) of the unpruned network is {total!r}; expected a finite number above zero")
    each = prices.per_channel(widths)
    if np.shape(each) != (len(widths),) or not np.isfinite(each).all():
        raise GatorError(
            f"{name}: per_channel(widths) is {each!r}; expected {len(widths)} finite numbers, one for every edge of the graph"
        )
    return prices


def restored_prices(cost: Cost, model: nn.Module, graph: Hypergraph, state: PlainData) -> Prices:
    """The prices that saved this state (`Prices.state` or `state_for_cut`), with the factor that had corrected them."""
    prices = cost.restored(model, graph, {key: value for key, value in state.items() if key != _FACTOR})
    return _ScaledPrices(prices, state[_FACTOR]) if _FACTOR in state else prices


@runtime_checkable
class PlainPrices(Protocol):
    """The least that a user's prices must have."""

    def total(self, widths: Widths) -> float: ...

    def per_channel(self, widths: Widths) -> Floats: ...


@runtime_checkable
class PlainCost(Protocol):
    """The least that a user's cost must have."""

    def on(self, model: nn.Module, graph: Hypergraph) -> PlainPrices: ...


@runtime_checkable
class _WithUnit(Protocol):
    unit: str


class _WrappedPrices(Prices):
    def __init__(self, prices: PlainPrices, unit: str) -> None:
        self._prices, self.unit = prices, unit

    def total(self, widths: Widths) -> float:
        return float(_numbers(self._prices.total(widths)))

    def per_channel(self, widths: Widths) -> Floats:
        return _numbers(self._prices.per_channel(widths))


def _numbers(found: Any) -> Floats:
    """Numbers, lists, arrays and tensors as an array."""
    return np.asarray(found.detach().cpu() if isinstance(found, Tensor) else found, dtype=np.float64)


class _WrappedCost(Cost):
    """A user's cost with a unit; without one it is counted in the name of its class."""

    def __init__(self, cost: PlainCost) -> None:
        self.cost = cost
        self.unit = cost.unit if isinstance(cost, _WithUnit) else type(cost).__name__

    def on(self, model: nn.Module, graph: Hypergraph) -> Prices:
        prices = self.cost.on(model, graph)
        if isinstance(prices, Prices):
            return prices
        if not isinstance(prices, PlainPrices):
            raise GatorError(
                f"{type(self.cost).__name__}.on(model, graph) returned a {type(prices).__name__}; expected an object with "
                "total(widths) and per_channel(widths)"
            )
        return _WrappedPrices(prices, self.unit)


def as_cost(cost: Cost | PlainCost) -> Cost:
    """The cost itself, or a user's object with `on(model, graph)` wrapped to have everything a `Cost` has."""
    if isinstance(cost, Cost):
        return cost
    if not isinstance(cost, PlainCost):
        raise GatorError(f"cost is a {type(cost).__name__} without on(model, graph); see gator.cost.prices.Cost")
    return _WrappedCost(cost)
