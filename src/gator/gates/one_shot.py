"""`one_shot`: which channels to keep by a criterion on the weights, without training; for those who want no gates.

Criteria are told apart by what they say about one channel of one layer that writes it. The layers of an edge are added up,
and every edge is scaled to a mean of one, so that edges of different sizes can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gator.cost.budget import parse_target
from gator.cost.by_name import CostName, cost_of
from gator.cost.flops import Flops
from gator.cost.prices import Cost, PlainCost, Prices
from gator.errors import GatorError
from gator.gates.correct import meeting
from gator.gates.project import Alive, Limits, Scores, project
from gator.gates.trade import traded
from gator.graph.hypergraph import Edge, Hypergraph, SavedGraph
from gator.graph.trace import named_tensors, retraced
from gator.surgery.cut import cut

aten = torch.ops.aten
_NORMS = (aten.batch_norm, aten.instance_norm, aten.layer_norm, aten.rms_norm, aten.group_norm)
Rows = Tensor  # channels x everything else
_ROUNDS = 8


def _l1(rows: Rows, gradient: Rows | None) -> Tensor:  # noqa: ARG001
    return rows.abs().sum(1)


def _l2(rows: Rows, gradient: Rows | None) -> Tensor:  # noqa: ARG001
    return rows.square().sum(1).sqrt()


def _taylor(rows: Rows, gradient: Rows | None) -> Tensor:
    """The first-order change of the loss when the channel's weights go."""
    assert gradient is not None
    return (rows * gradient).sum(1).abs()


def _geometric_median(rows: Rows, gradient: Rows | None) -> Tensor:  # noqa: ARG001
    """How far a filter is from all others: the one nearest to the median is the one the others can replace."""
    return torch.cdist(rows[None], rows[None])[0].sum(1)


_OF_PRODUCERS: dict[str, Callable[[Rows, Rows | None], Tensor]] = {
    "l1": _l1,
    "l2": _l2,
    "taylor": _taylor,
    "geometric_median": _geometric_median,
}
CRITERIA = (*_OF_PRODUCERS, "bn_scale", "random")


def one_shot(
    model: nn.Module,
    graph: SavedGraph,
    criterion: str = "l1",
    *,
    target: float | str,
    cost: CostName | Cost | PlainCost = "flops",
    loss: Callable[[], Tensor] | None = None,
    seed: int = 0,
    min_width: int | Mapping[str, int] = 1,
    round_to: int | str = 1,
    keep: Sequence[str] = (),
    per_cost: bool = False,
) -> dict[str, list[int]]:
    """The channels to keep, by edge, so that the cost is at most `target`: pass them to `gator.masked` or `gator.cut`.

    `criterion` is one of "l1", "l2", "taylor", "bn_scale", "geometric_median" and "random". "taylor" needs `loss`, a function
    that runs the model on some data and returns the loss. With `per_cost` the channels that go first are those that are worth
    least for what they cost, not those that are worth least, and edges then trade channels as long as that keeps more; for a
    cost that is measured, prices by FLOPs are tried as well.
    """
    if criterion not in CRITERIA:
        raise GatorError(f"criterion={criterion!r}; expected one of {', '.join(CRITERIA)}")
    if (criterion == "taylor") != (loss is not None):
        raise GatorError('criterion="taylor" and loss= go together: loss=lambda: criterion(model(x), y)')
    graph = retraced(graph, model)
    limits = Limits.of(graph, min_width, round_to, keep)
    asked = cost_of(cost)
    prices = asked.on(model, graph)
    limits = limits.in_steps_of(prices)
    unit: str = asked.unit
    wanted = parse_target(target, prices.total([edge.width for edge in graph.edges]), unit)
    scores = _scores(model, graph, criterion, loss, seed)
    steering: tuple[Prices, ...] = (prices,) if per_cost else ()
    if per_cost and prices.tolerance > 0:
        # What is measured has kinks. Prices by FLOPs have none, and may lead to where more is kept.
        steering = (prices, Flops().on(model, graph))
    after, _ = meeting(
        graph,
        prices,
        lambda budget: _closed(graph, prices, limits, scores, budget, unit, steering),
        lambda kept: cut(model, graph, kept, keep_class=False, verify=False),
        wanted,
        unit=unit,
    )
    return {name: np.flatnonzero(mask).tolist() for name, mask in graph.masks_of(after).items()}


def _closed(
    graph: Hypergraph, prices: Prices, limits: Limits, scores: Scores, budget: float, unit: str, steering: Sequence[Prices]
) -> Alive:
    """The channels left: in one go by score or, by every cost that steers, by score for what a channel costs.

    Edges then trade channels as long as that keeps more, and the way that keeps most is taken.
    """
    everything: Alive = np.ones(len(scores), dtype=bool)
    if not steering:
        return project(graph, prices, limits, everything, scores, budget, unit=unit).alive
    edge_of = np.repeat(np.arange(len(graph.edges)), [edge.width for edge in graph.edges])
    whole = prices.total([edge.width for edge in graph.edges])

    def steered(by: Prices) -> Alive:
        alive = everything
        for step in range(1, _ROUNDS + 1):  # prices are those at the widths of the round
            costs = by.per_channel(np.bincount(edge_of[alive], minlength=len(graph.edges)))
            worth = scores / np.maximum(costs, 1e-6 * float(costs.max()) or 1.0)[edge_of]
            wanted = whole * (budget / whole) ** (step / _ROUNDS)
            alive = project(graph, prices, limits, alive, worth, wanted, unit=unit).alive
        return traded(graph, prices, limits, alive, scores, budget)

    found = [steered(steering[0])]  # raises what cannot be reached
    for by in steering[1:]:
        with suppress(GatorError):  # another way may end before
            found.append(steered(by))
    return max(found, key=lambda alive: float(scores[alive].sum()))


def _scores(model: nn.Module, graph: Hypergraph, criterion: str, loss: Callable[[], Tensor] | None, seed: int) -> Scores:
    tensors = named_tensors(model)
    if criterion == "random":
        return np.random.default_rng(seed).random(sum(edge.width for edge in graph.edges))
    with _gradients(model, loss) as gradients:
        found = []
        for edge in graph.edges:
            values = _of_norms(graph, edge, tensors) if criterion == "bn_scale" else None
            if values is None:  # an edge without norm layers falls back to the size of its filters
                rule = _OF_PRODUCERS.get(criterion, _l1)
                values = _of_producers(graph, edge, tensors, gradients, rule)
            found.append(values / max(float(values.mean()), 1e-30))
    return np.concatenate(found)


@contextmanager
def _gradients(model: nn.Module, loss: Callable[[], Tensor] | None) -> Iterator[dict[str, Tensor]]:
    """Gradients of one loss by parameter name; those the model had are put back."""
    if loss is None:
        yield {}
        return
    before = {name: parameter.grad for name, parameter in model.named_parameters()}
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    try:
        for parameter in model.parameters():
            parameter.grad = None
        loss().backward()  # type: ignore[no-untyped-call]
        yield {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    finally:
        for name, parameter in model.named_parameters():
            parameter.grad = before[name]
        for name, buffer in model.named_buffers():
            buffer.data.copy_(buffers[name])


def _of_producers(
    graph: Hypergraph, edge: Edge, tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rule: Any
) -> Scores:
    total = np.zeros(edge.width)
    for parameter, axis in _written(graph, edge):
        units = next(m.units for m in edge.members if (m.parameter, m.axis) == (parameter, axis))
        tensor = tensors[parameter].detach().double()
        gradient = gradients.get(parameter)
        if rule is _taylor and gradient is None:
            continue
        rows = tensor.movedim(axis, 0).flatten(1)
        slopes = None if gradient is None else gradient.double().movedim(axis, 0).flatten(1)
        values = rule(rows, slopes).cpu().numpy()
        for position, unit in enumerate(units):
            if unit >= 0:
                total[unit] += values[position]
    return total


def _written(graph: Hypergraph, edge: Edge) -> list[tuple[str, int]]:
    """Weights of the edge's producers, by name and the axis they write it with."""
    members = {(member.parameter, member.axis) for member in edge.members}
    return [(port.parameter, port.axis) for port in graph.producers if (port.parameter, port.axis) in members]


def _of_norms(graph: Hypergraph, edge: Edge, tensors: Mapping[str, Tensor]) -> Scores | None:
    """The scale of the norm layers on the edge, None if there are none."""
    program = graph.eval.program
    norms = {
        program.values[call.value_at("weight")].name
        for call in program.calls
        if call.packet in _NORMS and call.args.get("weight") is not None
    }
    total, seen = np.zeros(edge.width), False
    for member in edge.members:
        if member.parameter in norms:
            seen = True
            values = tensors[member.parameter].detach().double().abs().cpu().numpy()
            for position, unit in enumerate(member.units):
                if unit >= 0:
                    total[unit] += values[position]
    return total if seen else None
