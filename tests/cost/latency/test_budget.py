"""Budgets in milliseconds: met by what is measured, refused before training if they cannot be."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import BLOCK, small

import gator
from gator.cost.prices import Cost, Prices
from gator.cost.target import parse_target
from gator.gates.correct import corrected
from gator.gates.limits import Limits
from gator.gates.project import project
from gator.gates.widen import widened


@pytest.mark.parametrize("method", ["table", "probe"])
@pytest.mark.parametrize("target", [0.6, "relative"])
def test_one_shot_meets_the_measured_budget(fake, method, target) -> None:
    model, x, graph = small()
    whole = fake.ms(model, ((x,), {}))
    asked = f"{0.6 * whole:.6f} ms" if target == "relative" else target
    cost = gator.Latency("fake", method, threads=1)
    kept = gator.one_shot(model, graph, "l1", target=asked, cost=cost, round_to=4)
    measured = fake.ms(gator.cut(model, graph, kept), ((x,), {}))
    assert measured <= 0.6 * whole
    assert measured >= 0.6 * whole * 0.85  # blocks of this small network are a tenth of its time


@pytest.mark.trains
def test_pruner_meets_the_measured_budget(fake) -> None:
    """Layers take 1.3 times as long inside the network as alone."""
    fake.inside = 1.3
    model, x, _ = small()
    whole = fake.ms(model, ((x,), {}))
    cost = gator.Latency("fake", threads=1)
    pruner = gator.Pruner(model, x, cost=cost, target=0.6, steps=30, round_to="auto")
    assert pruner.whole_cost == pytest.approx(whole, rel=1e-6)
    assert pruner.unit == "ms"
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        loss = model(torch.randn(4, 3, 8, 8)).square().mean() + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.step(lr=0.01)
    assert pruner.finished
    assert all(len(channels) % BLOCK == 0 for channels in pruner.kept.values())
    left = fake.ms(pruner.cut(), ((x,), {}))
    assert 0.5 * whole <= left <= 0.6 * whole  # a block of this small network is a tenth of its time
    assert pruner.cost_left == pytest.approx(left)  # what was measured is what is said from here on
    assert f"{left:.4g} ms of" in pruner.summary()


def test_round_to_must_be_a_number_or_auto() -> None:
    model, x, _ = small()
    with pytest.raises(gator.GatorError, match="round_to='each'; expected a whole number"):
        gator.Pruner(model, x, alpha=1.0, round_to="each")


def test_a_budget_below_what_can_be_reached_says_the_lowest(fake) -> None:
    model, x, _ = small()
    cost = gator.Latency("fake", threads=1)
    with pytest.raises(gator.GatorError, match=r"target of 0.001 ms cannot be reached: .* allow costs 0\.\d+ ms"):
        gator.Pruner(model, x, cost=cost, target="1 us", steps=10)


def test_corrections_by_hand() -> None:
    """Predictions that are a quarter too low are moved until what is measured is within the tolerance."""
    order = np.zeros(1000, bool)

    def attempt(wanted: float) -> np.ndarray:
        alive = order.copy()
        alive[: int(min(wanted, 1000))] = True
        return alive

    alive, cost = corrected(attempt, lambda a: 1.25 * a.sum() + 20, 500.0, tolerance=0.03, unit="ms")
    assert cost == 1.25 * alive.sum() + 20
    assert 485 <= 1.25 * alive.sum() + 20 <= 500
    with pytest.raises(gator.GatorError, match=r"the cheapest of .* costs 900 ms"):
        corrected(attempt, lambda a: 900.0, 500.0, tolerance=0.03, unit="ms")


def test_luck_is_not_enough() -> None:
    """A network that is near enough once and far too slow the next time is not taken."""
    measured: list[int] = []

    def attempt(wanted: float) -> np.ndarray:
        return np.arange(1000) < int(min(wanted, 1000))

    def cost(alive: np.ndarray) -> float:
        measured.append(int(alive.sum()))
        return alive.sum() * (1.0 if len(measured) == 1 else 1.2)

    alive, found = corrected(attempt, cost, 500.0, tolerance=0.03, unit="ms")
    assert measured[0] == measured[1] > measured[2]
    assert 485 <= 1.2 * alive.sum() == found <= 500


def test_of_two_networks_the_one_that_meets_the_target_is_found() -> None:
    """However far below it is."""

    def attempt(wanted: float) -> np.ndarray:
        return np.arange(10) < (10 if wanted >= 500 else 4)

    alive, cost = corrected(attempt, lambda a: 60.0 * a.sum(), 500.0, tolerance=0.03, unit="ms")
    assert (alive.sum(), cost) == (4, 240)


def test_channels_open_again_where_the_time_ended_far_below_the_target() -> None:
    """Predictions are 20 % too high, so that a projection closes too much; single steps come within 3 %."""
    model, _, graph = small()
    limits = Limits.of(model, graph, 0, 8, ())
    living = np.ones(int(graph.starts[-1]), dtype=bool)
    scores = np.random.default_rng(0).random(len(living))
    prices = gator.Flops().on(model, graph)
    whole, measured = prices.total(graph.widths_of(living)), []

    def measure(alive: np.ndarray) -> float:
        measured.append(0.8 * prices.total(graph.widths_of(alive)))
        return measured[-1]

    alive = project(graph, prices, limits, living, scores, 0.5 * whole)
    found, cost = widened(
        graph, limits, living, scores, alive, measure(alive), target=0.5 * whole, tolerance=0.03,
        predict=lambda a: prices.total(graph.widths_of(a)), measure=measure,
    )  # fmt: skip
    assert (found >= alive).all()
    assert (found & ~alive).any()
    assert cost == pytest.approx(measure(found))
    assert 0.4 * whole < cost <= 0.5 * whole
    assert all(width % 8 == 0 for width in graph.widths_of(found))


def test_a_budget_that_is_far_from_met_is_said_so(fake, caplog) -> None:
    """One step of any edge is a large part of the network."""
    model, x, _ = small()
    pruner = gator.Pruner(model, x, cost=gator.Latency("fake", threads=1), target=0.99, steps=10, round_to=24)
    pruner.project()
    assert pruner.cost_left < 0.96 * pruner.whole_cost
    assert re.search(r"the target of .* is reached with .*; no network that was measured comes closer", caplog.text)


def test_the_lowest_that_can_be_reached_is_reached() -> None:
    """The middle of what is near enough is aimed at, unless there is nothing that low."""

    def attempt(budget: float) -> np.ndarray:
        if budget < 100:
            raise gator.BudgetError(f"the target of {budget} cannot be reached")
        return np.arange(1000) < int(min(budget, 1000))

    assert corrected(attempt, lambda a: float(a.sum()), 500.0, tolerance=0.03, unit="ms")[0].sum() == 492
    assert corrected(attempt, lambda a: float(a.sum()), 100.0, tolerance=0.03, unit="ms")[0].sum() == 100
    assert corrected(attempt, lambda a: 1.005 * a.sum(), 100.5, tolerance=0.03, unit="ms")[0].sum() == 100
    assert corrected(attempt, lambda a: float(a.sum()), 1000.0, tolerance=0.03, unit="ms")[0].sum() == 1000  # met as it is
    with pytest.raises(gator.GatorError, match="target of 99"):
        corrected(attempt, lambda a: float(a.sum()), 99.0, tolerance=0.03, unit="ms")


@pytest.mark.parametrize(("text", "ms"), [("5 ms", 5.0), ("5MS", 5.0), ("250 us", 0.25), ("0.002 s", 2.0)])
def test_times_are_read(text, ms) -> None:
    assert parse_target(text, 10.0, "ms") == pytest.approx(ms)


@pytest.mark.parametrize(("text", "unit"), [("5 ms", "MACs"), ("5 MMACs", "ms"), ("4 MB", "ms")])
def test_units_are_not_mixed(text, unit) -> None:
    with pytest.raises(gator.GatorError, match=f"but the cost is counted in {unit}"):
        parse_target(text, 10.0, unit)


@pytest.mark.parametrize("text", ["5 kms", "5 Gs", "5", "ms"])
def test_times_have_no_prefixes(text) -> None:
    with pytest.raises(gator.GatorError, match=r"cannot be read|expected a share"):
        parse_target(text, 10.0, "ms")


def test_probe_by_hand(fake) -> None:
    """Half of an edge of 48 channels saves 3 of 6 blocks, with 8 on either side; the sum is scaled to the whole."""
    model, x, graph = small()
    priced = gator.Latency("fake", "probe", threads=1).on(model, graph)
    saved = [4 * (1 + 4 * 6) * 128 + 4, 3 * 16 * 128, 3 * 16 * 128]
    slopes = np.array(saved) / np.array([32, 24, 24])
    whole = fake.ms(model, ((x,), {}))
    assert priced.per_channel([64, 48, 48]) == pytest.approx(slopes * whole / (slopes @ [64, 48, 48]), rel=1e-6)
    assert priced.total([64, 48, 48]) == pytest.approx(whole)


def test_shrinking_does_not_calibrate_again(fake) -> None:
    model, x, _ = small()
    pruner = gator.Pruner(model, x, cost=gator.Latency("fake", threads=1), alpha=1.0)
    before = pruner.prices.total([40, 24, 24])
    with torch.no_grad():
        pruner.gates.alive[8:16] = False
    fake.prepared = 0
    pruner.shrink_()
    assert fake.prepared == 2  # the smaller network, beside the one it came from and in its place
    assert [edge.width for edge in pruner.graph.edges] == [56, 48, 48]
    assert pruner.prices.total([40, 24, 24]) == pytest.approx(before)
    fake.prepared = 0
    pruner.load_state_dict(pruner.state_dict())
    assert fake.prepared == 0
    assert pruner.prices.total([40, 24, 24]) == pytest.approx(before)


@pytest.mark.parametrize("method", ["table", "probe"])
def test_milliseconds_stay_those_of_the_first_network(fake, method) -> None:
    """The machine becomes half as fast during training; then the process ends, and another one goes on."""
    model, x, _ = small()
    cost = gator.Latency("fake", method, threads=1)
    pruner = gator.Pruner(model, x, cost=cost, target=0.7, steps=100)
    whole = pruner.whole_cost
    fake.pace = 2.0
    with torch.no_grad():
        pruner.gates.alive[8:16] = False
    pruner.shrink_()
    assert pruner.prices.total([56, 48, 48]) == pytest.approx(fake.ms(pruner._measurable({}), ((x,), {})), rel=1e-6)
    assert pruner.target == pytest.approx(0.7 * whole)
    fake.prepared, state = 0, pruner.state_dict()
    pruner.detach()
    other = gator.Pruner(model, x, cost=cost, target=0.7, steps=100, state=state)
    assert fake.prepared == 1  # the network as it is; nothing is timed again
    assert other.target == pruner.target
    assert other.prices.total([40, 24, 24]) == pytest.approx(pruner.prices.total([40, 24, 24]), rel=1e-12)
    other.detach()
    with pytest.raises(gator.GatorError, match="measured under other conditions"):
        gator.Pruner(model, x, cost=gator.Latency("fake", method, threads=2), target=0.7, steps=100, state=state)


def test_an_estimate_is_corrected_before_channels_close(fake) -> None:
    """Narrower networks turn out a fifth faster than predicted: what closes for good is judged by what is measured."""
    model, x, _ = small()
    pruner = gator.Pruner(model, x, cost=gator.Latency("fake", threads=1), target=0.6, steps=100)
    alive = pruner.gates.living()
    alive[:24] = False
    fake.narrow = 0.8
    pruner._keep_only(alive)
    now = fake.ms(pruner._measurable(pruner.graph.masks_of(alive)), ((x,), {}))
    assert pruner.cost_left == pytest.approx(now / 0.8, rel=0.02)
    worth = np.ones(len(alive))
    assert (pruner.budget.on_schedule(alive, worth, 30) == alive).all()  # the estimate is not above the schedule yet
    assert pruner.cost_left == pytest.approx(now / 0.8, rel=0.02)
    # The network that would come next is measured: it is far below the target, so nothing closes.
    assert (pruner.budget.on_schedule(alive, worth, 60) == alive).all()
    assert pruner.cost_left == pytest.approx(now, rel=0.02)
    assert pruner.budget.measured_at < pruner.target


def test_an_estimate_is_corrected_all_the_way_down(fake) -> None:
    """What closes for good is never far above or below what the schedule allows, as measured."""
    model, x, _ = small(wide=256, inner=192)
    pruner = gator.Pruner(model, x, cost=gator.Latency("fake", threads=1), target=0.6, steps=100)
    fake.narrow, fake.full = 0.8, 256
    budget, alive = pruner.budget, pruner.gates.living()
    worth = np.random.default_rng(0).random(len(alive))
    for step in range(1, budget.schedule.last_step):
        alive = budget.on_schedule(alive, worth, step)
        assert budget.measured(alive) >= 0.97 * budget.target
    assert budget.cost(alive) == pytest.approx(budget.measured(alive), rel=0.02)
    assert budget.cost(alive) <= budget.schedule.allowed(step)


class Estimated(Cost):
    """A user's cost that is estimated, and measured to be `truth` times as much."""

    unit, measurements = "MACs", 0

    def __init__(self, truth) -> None:
        self.truth = truth

    def on(self, model, graph):
        return EstimatedPrices(self, gator.Flops().on(model, graph))


class EstimatedPrices(Prices):
    unit, tolerance = "MACs", 0.03

    def __init__(self, cost, flops) -> None:
        self.cost, self.flops = cost, flops

    def total(self, widths):
        return self.flops.total(widths)

    def per_channel(self, widths):
        return self.flops.per_channel(widths)

    def measure(self, network, widths):
        self.cost.measurements += 1
        return np.float64(self.cost.truth * self.total(widths))


@pytest.mark.parametrize("truth", [0.85, 1.15])
def test_a_users_estimate_is_corrected_by_a_factor(truth) -> None:
    """Prices that only estimate and measure: what closes for good is judged by what is measured."""
    model, x, graph = small(wide=256, inner=192)
    cost, flops = Estimated(truth), gator.Flops().on(model, graph)
    pruner = gator.Pruner(model, x, cost=cost, target=0.6, steps=100)
    budget, alive, cost.measurements = pruner.budget, pruner.gates.living(), 0
    worth = np.random.default_rng(0).random(len(alive))
    for step in range(1, budget.schedule.last_step):
        alive = budget.on_schedule(alive, worth, step)
        assert truth * flops.total(graph.widths_of(alive)) >= 0.97 * budget.target
    assert budget.cost(alive) == pytest.approx(truth * flops.total(graph.widths_of(alive)))
    assert budget.cost(alive) <= budget.schedule.allowed(step)
    assert cost.measurements < 40


@pytest.mark.parametrize("how", ["resume", "resume a weighted cost", "load", "shrink"])
def test_the_factor_of_an_estimate_is_kept(how) -> None:
    """Without it the uncorrected estimate would decide what closes for good."""
    model, x, graph = small(wide=256, inner=192)
    cost = gator.WeightedCost((Estimated(0.85), 1.0)) if "weighted" in how else Estimated(0.85)
    estimate = cost.on(model, graph)
    pruner = gator.Pruner(model, x, cost=cost, target=0.6, steps=100)
    at_the_start, alive = pruner.state_dict(), pruner.gates.living()
    for step in range(1, 60):
        alive = pruner.budget.on_schedule(alive, np.random.default_rng(0).random(len(alive)), step)
    pruner._keep_only(alive)
    left, state = pruner.cost_left, pruner.state_dict()
    assert left == pytest.approx(0.85 * estimate.total(graph.widths_of(alive)))
    assert json.loads(json.dumps(state["budget"])) == state["budget"]
    if how == "shrink":
        pruner.shrink_()
    elif how == "load":
        pruner.load_state_dict(at_the_start)
        assert pruner.cost_left == pytest.approx(estimate.total(graph.widths_of(pruner.gates.living())))
        pruner.load_state_dict(state)
    else:
        pruner.detach()
        pruner = gator.Pruner(model, x, cost=cost, target=0.6, steps=100, state=state)
    assert pruner.cost_left == pytest.approx(left)
    widths = pruner.graph.widths_of(pruner.gates.living())
    assert pruner.prices.recalibrated([0, 0, 0], 0.0).total(widths) == pytest.approx(left)  # nothing to be learned from that


@pytest.mark.parametrize(("target", "narrow"), [(0.95, 0.97), (0.96, 0.96)])
def test_near_the_full_widths_the_target_is_met_as_measured(fake, target, narrow) -> None:
    """There a measurement corrects no prices, but it still decides."""
    model, x, _ = small(wide=256, inner=192)
    pruner = gator.Pruner(model, x, cost=gator.Latency("fake", threads=1), target=target, steps=100)
    fake.narrow, fake.full = narrow, 256
    pruner.project()
    found = fake.ms(pruner._measurable(pruner.kept), ((x,), {}))
    assert found <= pruner.target
    assert pruner.cost_left == pytest.approx(found)
    state = pruner.state_dict()
    pruner.shrink_()
    assert pruner.cost_left == pytest.approx(found)
    pruner.detach()
    again = gator.Pruner(small(wide=256, inner=192)[0], x, cost=pruner.cost, target=target, steps=100, state=state)
    assert again.cost_left == pytest.approx(found)


def test_a_budget_below_the_smallest_network_as_measured(fake) -> None:
    """The table says that it can be reached; it cannot."""
    model, x, _ = small()
    cost = gator.Latency("fake", threads=1)
    lowest = gator.Pruner(model, x, cost=cost, target=0.9, steps=10, min_width=16)
    lowest.detach()
    fake.narrow = 3.0
    with pytest.raises(gator.GatorError, match=r"cannot be reached: the smallest network these limits allow costs .* ms"):
        gator.Pruner(model, x, cost=cost, target=0.15, steps=10, min_width=16)


def test_prices_that_have_seen_a_network_say_what_it_took(fake) -> None:
    model, _, graph = small()
    priced = gator.Latency("fake", threads=1).on(model, graph)
    for widths in ([40, 24, 24], [64, 40, 48]):  # the last is drawn to the whole
        assert priced.recalibrated(widths, 1.1 * priced.total(widths)).total(widths) == pytest.approx(
            1.1 * priced.total(widths)
        )
    for widths in ([64, 46, 48], [64, 48, 48]):  # too near to the whole
        assert priced.recalibrated(widths, 5.0).total([40, 24, 24]) == priced.total([40, 24, 24])


def test_savings_do_not_depend_on_how_near_to_the_whole_the_network_is(fake) -> None:
    """The machine is slower than when the table was built, so the full width has another factor than the narrower ones."""
    model, _, graph = small()
    prices = gator.Latency("fake", threads=1).on(model, graph)
    lower = [np.array([edge.width - 16, edge.width // 2]) for edge in graph.edges]
    full = [edge.width for edge in graph.edges]
    before = prices.savings(full, lower)
    for factor in (0.9, 1.1):
        after = replace(prices, factor=factor * prices.factor).savings(full, lower)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_allclose(other, factor * one)


def test_a_state_is_of_one_cost(fake) -> None:
    model, x, _ = small()

    def state_of(cost: object) -> dict:
        pruner = gator.Pruner(model, x, cost=cost, alpha=1.0)
        pruner.detach()
        return pruner.state_dict()

    table, probe = (gator.Latency("fake", method, threads=1) for method in ("table", "probe"))
    with pytest.raises(gator.GatorError, match="saved with a cost in MACs, this one is in ms; pass the same cost="):
        gator.Pruner(model, x, cost=table, alpha=1.0, state=state_of("flops"))
    with pytest.raises(gator.GatorError, match='made with method="probe", now it is method="table"; resume with'):
        gator.Pruner(model, x, cost=table, alpha=1.0, state=state_of(probe))
    with pytest.raises(gator.GatorError, match='made with method="table", now it is method="probe"'):
        gator.Pruner(model, x, cost=probe, alpha=1.0, state=state_of(table))
    path = table.find_table(gator.trace(model, x))[0]
    elsewhere = gator.Latency("fake", threads=1, table=path, other_device=True)
    with pytest.raises(gator.GatorError, match='made with method="table", now it is other_device=True'):
        gator.Pruner(model, x, cost=elsewhere, alpha=1.0, state=state_of(table))
    with pytest.raises(gator.GatorError, match='made with other_device=True, now it is method="table"'):
        gator.Pruner(model, x, cost=table, alpha=1.0, state=state_of(elsewhere))
    gator.Pruner(model, x, cost=elsewhere, alpha=1.0, state=state_of(elsewhere)).detach()


def test_a_weighted_latency_is_calibrated_once(fake) -> None:
    """Shrinking hands on what every part of the cost knows."""
    model, x, _ = small()
    cost = gator.WeightedCost((gator.Latency("fake", threads=1), 0.5), (gator.Flops(), 0.5))
    pruner = gator.Pruner(model, x, cost=cost, alpha=1.0)
    before = pruner.prices.total([40, 24, 24])
    with torch.no_grad():
        pruner.gates.alive[8:16] = False
    fake.prepared = 0
    pruner.shrink_()
    assert fake.prepared == 2
    assert pruner.prices.total([40, 24, 24]) == pytest.approx(before)
    state = pruner.state_dict()
    pruner.detach()
    other = gator.Pruner(model, x, cost=cost, alpha=1.0, state=state)
    assert other.prices.total([40, 24, 24]) == pytest.approx(before)
    other.detach()
    with pytest.raises(gator.GatorError, match="the state was saved with 2 costs, now there are 1"):
        gator.Pruner(model, x, cost=gator.WeightedCost((gator.Flops(), 1.0)), alpha=1.0, state=state)
