"""`Budget`: what a network may cost, the limits on its widths, and which channels stay so that both are kept.

It owns the prices, which change when a measurement corrects them, the target, and the schedule on which it is approached.
Gates and criteria only give scores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gator.cost.prices import PlainData, Prices
from gator.cost.target import shown
from gator.errors import BudgetError, GatorError
from gator.gates.budget_schedule import Schedule
from gator.gates.correct import corrected
from gator.gates.limits import Limits
from gator.gates.project import Alive, Scores, disconnecting_edge, project, smallest, unreachable_target
from gator.gates.widen import widened
from gator.graph.hypergraph import Hypergraph
from gator.rank_zero import on_rank_zero

_EVERY = 0.1  # an estimate is corrected by a measurement each time the cost has changed by this share of the whole way
_NEAR, _EVERY_NEAR = 1.15, 0.01  # below 1.15 targets: each time it has changed by 0.01 targets
_FAR = 0.5  # of the target: below it an estimate needs no measurement, because none is wrong by a factor of two
log = logging.getLogger("gator")
Masks = dict[str, NDArray[np.bool_]]
Build = Callable[[Masks], nn.Module]  # the smaller network with these living channels, in the form that is measured


class Budget:
    """The target (None: there is none, and only the limits hold), the limits, and the prices they are checked with.

    With `steps` the target is approached on a schedule of that many steps, from `whole`, the cost of the network at the start.
    """

    def __init__(
        self,
        graph: Hypergraph,
        prices: Prices,
        limits: Limits,
        build: Build,
        *,
        whole: float,
        target: float | None,
        steps: int | None = None,
        measured_at: float | None = None,
        reached: float | None = None,
        first_widths: Sequence[int] | None = None,
    ) -> None:
        self.graph, self.prices, self.limits = graph, prices, limits.resolved(prices, graph)
        self.whole, self.target = whole, target
        self.schedule = None if target is None or steps is None else Schedule(whole, target, steps)
        self.measured_at = whole if measured_at is None else measured_at  # the cost at which the estimate was last corrected
        self.reached = reached  # what the final network was measured to cost
        # Of the edges of the network at the start: a channel counts more the narrower its edge has become.
        self.first_widths = np.array([edge.width for edge in graph.edges] if first_widths is None else first_widths)
        self._build = build

    def cost(self, alive: Alive) -> float:
        """What the network with these channels costs, by the prices as they are now."""
        return self.prices.total(self.graph.widths_of(alive))

    def measured(self, alive: Alive) -> float:
        """What the network with these channels really costs: on all processes what was measured on rank 0."""
        if not self.prices.measures:
            return self.cost(alive)
        found = self.prices.measure(self._build(self.graph.masks_of(alive)), self.graph.widths_of(alive))
        cost = self.cost(alive) if found is None else float(found)
        return on_rank_zero(lambda: cost) if self.prices.tolerance else cost

    def open_channels(self, alive: Alive, logits: Scores, gated: Sequence[int]) -> Alive:
        """Close channels with negative logits, except those that the limits or the connection of the network need."""
        limits = self.limits
        after = self._open(alive, logits, gated, limits)
        while (edge := disconnecting_edge(self.graph, alive, after)) is not None:
            limits = limits.with_one_of(edge)
            after = self._open(alive, logits, gated, limits)
        return after

    def _open(self, alive: Alive, logits: Scores, gated: Sequence[int], limits: Limits) -> Alive:
        after: Alive = alive.copy()
        for index in gated:
            part = slice(int(self.graph.starts[index]), int(self.graph.starts[index + 1]))
            wanted = int((alive[part] & (logits[part] >= 0)).sum())
            fitting = [width for width in limits.widths_down(index, int(alive[part].sum())) if width >= wanted]
            if fitting:
                order = np.argsort(np.where(alive[part], logits[part], -np.inf), kind="stable")[::-1]
                after[part] = False
                after[part.start + order[: min(fitting)]] = True
        return after

    def on_schedule(self, living: Alive, worth: Scores, step: int) -> Alive:
        """The channels that stay open after this step: if the cost is too high, those worth least for it close.

        Closed channels stay closed, so an estimate is corrected on the way: the smaller network is measured before its channels
        close.
        """
        assert self.schedule is not None
        allowed, target = self.schedule.allowed(step), self.schedule.target
        if self.cost(living) <= allowed:
            return living
        try:
            after = self._project(living, worth, allowed, at_end=target)
        except BudgetError:  # a corrected estimate says that no network is that cheap: the last step decides, and measures
            return living
        if not self.prices.tolerance:
            return after
        cost = self.cost(after)
        if self._is_due(cost, target):
            cost = self.measured(after)
            self.prices = self.prices.recalibrated(self.graph.widths_of(after), cost)
            self.measured_at = self.cost(after)
        # If this closes too much, wait: at the end several networks are measured to find one that is close to the target.
        return after if cost >= (1 - self.prices.tolerance) * target else living

    def _is_due(self, cost: float, target: float) -> bool:
        """Whether the cost has changed so much since the last measurement that the estimate needs a correction."""
        every = _EVERY_NEAR * target if cost < _NEAR * target else _EVERY * (self.whole - target)
        return abs(self.measured_at - cost) >= every

    def check_needs_no_network(self) -> None:
        """Raise if the target cannot be met without cutting and measuring networks, as for a model that is sharded."""
        if self.prices.tolerance:
            raise GatorError(
                "this cost is measured on cut networks, and a model that is sharded cannot be cut\n"
                '  Use cost="flops" or "memory", or DistributedDataParallel instead of sharding.'
            )
        if self.prices.measures and not self.limits.least.all():
            raise GatorError(
                "a block that loses all its inner channels may leave a constant, which this cost counts in the cut network, "
                'and a model that is sharded cannot be cut\n  Pass min_width=1, or use cost="flops".'
            )

    def check_reachable(self, living: Alive) -> None:
        """Raise BudgetError now if no choice of channels can meet the target, by estimate or by measurement."""
        assert self.target is not None
        project(self.graph, self.prices, self.limits, living, np.zeros(len(living)), self.target)
        if self.prices.tolerance:
            least = smallest(self.graph, self.limits, living)
            if self.cost(least) > _FAR * self.target and (lowest := self.measured(least)) > self.target:
                raise unreachable_target(self.target, lowest, self.prices.unit)

    def projected(self, living: Alive, worth: Scores) -> tuple[Alive, float | None]:
        """The channels that stay when those that are worth least for their cost close until the target is met.

        With an estimated cost also what the network was measured to cost, for `settle`.
        """

        return self.meeting(lambda budget: self._project(living, worth, budget), living, worth)

    def _project(self, living: Alive, worth: Scores, budget: float, at_end: float | None = None) -> Alive:
        # Measured costs fall where whole layers go: there narrow edges may close.
        first = None if self.prices.tolerance else self.first_widths
        return project(
            self.graph, self.prices, self.limits, living, worth, budget, per=self.prices, at_end=at_end, first_widths=first
        )

    def meeting(self, attempt: Callable[[float], Alive], living: Alive, scores: Scores) -> tuple[Alive, float | None]:
        """As `projected`, for any way to choose channels by their predicted cost."""
        assert self.target is not None
        tolerance = self.prices.tolerance

        def cost(alive: Alive) -> float:
            # Exact counts miss only the constant that a removed block may leave behind.
            exact = not tolerance and bool(self.graph.widths_of(alive).all())
            return self.cost(alive) if exact else self.measured(alive)

        alive, found = corrected(attempt, cost, self.target, tolerance=tolerance, unit=self.prices.unit)
        if not tolerance:
            return alive, None
        alive, found = widened(
            self.graph, self.limits, living, scores, alive, found, target=self.target, tolerance=tolerance, predict=self.cost,
            measure=self.measured,
        )  # fmt: skip
        if found < self.target * (1 - tolerance) and (alive != living).any():
            reached = (shown(value, self.prices.unit) for value in (self.target, found))
            log.warning("the target of %s is reached with %s; no network that was measured comes closer", *reached)
        return alive, found

    def settle(self, alive: Alive, measured: float | None) -> None:
        """The final network has these channels, and was measured to cost this much; None if its cost is counted."""
        if measured is not None:
            self.prices = self.prices.recalibrated(self.graph.widths_of(alive), measured)
            self.reached = measured

    def of_cut(self, graph: Hypergraph, prices: Prices, old_edges: NDArray[np.int64]) -> Budget:
        """The same budget for a network cut from this one; `old_edges` has the old edge of every new one."""
        least = np.minimum(self.limits.least[old_edges], [edge.width for edge in graph.edges])
        kept = tuple(index for index, old in enumerate(old_edges.tolist()) if old in self.limits.kept)
        limits = Limits(least, self.limits.multiples[old_edges], kept)
        return Budget(graph, prices, limits, self._build, **self._course(), first_widths=self.first_widths[old_edges].tolist())

    def _course(self) -> PlainData:
        """What does not depend on the channels that live."""
        steps = None if self.schedule is None else self.schedule.steps
        fixed = {"whole": self.whole, "target": self.target, "steps": steps}
        return {**fixed, "measured_at": self.measured_at, "reached": self.reached}

    def state(self) -> PlainData:
        """What `restored` needs, as plain data."""
        return {
            **self._course(),
            "least": self.limits.least.tolist(),
            "multiples": self.limits.multiples.tolist(),
            "first_widths": self.first_widths.tolist(),
            "pricing_state": self.prices.state(),
        }

    def restored(self, prices: Prices, state: PlainData) -> Budget:
        """The budget as it was saved, with prices restored from the same state."""
        least, multiples = (np.array(state[name], dtype=np.int64) for name in ("least", "multiples"))
        limits = Limits(least, multiples, self.limits.kept)
        course = {name: state[name] for name in self._course()}
        return Budget(self.graph, prices, limits, self._build, **course, first_widths=state["first_widths"])
