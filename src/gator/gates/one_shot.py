"""`one_shot`: which channels to keep by a criterion on the weights, without training.

A criterion scores one channel of one layer that writes it. The scores of an edge's layers are added, and every edge is scaled
to a mean of one, so that edges of different sizes can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from gator.cost.by_name import CostName, cost_of
from gator.cost.flops import Flops
from gator.cost.prices import Cost, PlainCost, Prices, prices_of
from gator.cost.target import parse_target
from gator.errors import BudgetError, GatorError, KeptError
from gator.gates.budget import Budget, Masks
from gator.gates.limits import Limits, MinWidth, RoundTo, edges_named
from gator.gates.project import Alive, Scores, disconnecting_edge, project
from gator.gates.trade import traded
from gator.graph.bake import baked
from gator.graph.hypergraph import Edge, Hypergraph, SavedGraph
from gator.graph.trace import named_tensors, retraced
from gator.surgery.cut import cut_for_measurement

aten = torch.ops.aten
_NORMS = (aten.batch_norm, aten.instance_norm, aten.layer_norm, aten.rms_norm, aten.group_norm)
Rows = Tensor  # channels x everything else
CriterionFunction = Callable[[Rows, Rows | None], Tensor]  # a weight and its gradient to one score per channel
Criterion = Literal["l1", "l2", "taylor", "geometric_median", "bn_scale", "random"]
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


_OF_PRODUCERS: dict[str, CriterionFunction] = {
    "l1": _l1,
    "l2": _l2,
    "taylor": _taylor,
    "geometric_median": _geometric_median,
}


def one_shot(
    model: nn.Module,
    graph: SavedGraph,
    criterion: Criterion | CriterionFunction = "l1",
    *,
    target: float | str | None = None,
    ratios: float | Mapping[str, float] | None = None,
    cost: CostName | Cost | PlainCost = "flops",
    loss: Callable[[], Tensor] | None = None,
    seed: int = 0,
    min_width: MinWidth = 1,
    round_to: RoundTo = "auto",
    keep: Iterable[str | nn.Module] = (),
    per_cost: bool = False,
) -> dict[str, list[int]]:
    """Choose the channels to keep by a criterion on the weights, without training.

    Args:
        model: the network; it is not changed.
        graph: of this model, from `gator.trace`.
        criterion: "l1", "l2", "taylor", "bn_scale", "geometric_median", "random"; or a function `f(rows, gradient)` that is
            called with every weight that writes an edge, as channels x everything else, and with its gradient in the same
            shape (None without `loss`), and returns one score per channel, not negative: the higher, the more important.
        target: what may be left of the cost: a share (0.5, "50%") or a figure ("300 MMACs"); or
        ratios: the share of channels to remove, of every edge or by edge name (layers and glob patterns work too).
        cost: "flops", "memory", "latency", or a cost object.
        loss: a function that runs the model on some data and returns the loss; "taylor" needs it.
        seed: of "random".
        min_width, round_to, keep: as in `gator.Pruner`, but every edge keeps a channel by default; with ratios, round_to="auto"
            rounds to single channels.
        per_cost: remove first the channels that are least important for what they cost, and let edges trade channels as long
            as that keeps more; for a cost that is measured, prices by FLOPs are tried as well.

    Returns:
        The kept channels of the edges that lose some, for `gator.masked` and `gator.cut`.

    Raises:
        GatorError: for settings that do not fit; BudgetError if the target cannot be reached.

    Examples:
        >>> model, x = zoo.build("digits:resnet").model, torch.zeros(1, 1, 8, 8)
        >>> graph = gator.trace(model, x)
        >>> kept = gator.one_shot(model, graph, "l1", target=0.5)
        >>> gator.predict_macs(graph, kept) <= 0.5 * graph.macs
        True
    """
    if not callable(criterion) and criterion not in get_args(Criterion):
        raise GatorError(f"criterion={criterion!r}; expected a function or one of {', '.join(get_args(Criterion))}")
    if (criterion == "taylor" and loss is None) or (loss is not None and criterion != "taylor" and not callable(criterion)):
        raise GatorError('criterion="taylor" and loss= go together: loss=lambda: criterion(model(x), y)')
    if (target is None) == (ratios is None):
        raise GatorError("pass target= (what may be left of the cost) or ratios= (shares of channels to remove), not both")
    graph = retraced(graph, model)
    if ratios is not None and (per_cost or cost != "flops"):
        raise GatorError("ratios= does not depend on a cost: leave out cost= and per_cost=")
    limits = Limits.of(model, graph, min_width, 1 if ratios is not None and round_to == "auto" else round_to, keep)
    scores = _scores(model, graph, criterion, loss, seed, limits.kept)
    if ratios is not None:
        alive = _by_ratio(graph, limits, scores, _ratios(model, graph, ratios))
    else:
        assert target is not None
        prices = prices_of(cost_of(cost), model, graph)
        whole = prices.total([edge.width for edge in graph.edges])
        goal = parse_target(target, whole, prices.unit)
        budget = Budget(graph, prices, limits, partial(_measurable, model, graph), whole=whole, target=goal)
        # A measured cost has kinks. Prices by FLOPs have none, and may lead to where more is kept.
        steering: tuple[Prices, ...] = (prices, Flops().on(model, graph)) if prices.tolerance else (prices,)
        everything: Alive = np.ones(len(scores), dtype=bool)
        alive, _ = budget.meeting(
            lambda limit: _chosen(budget, scores, limit, steering if per_cost else ()), everything, scores
        )
    return {name: np.flatnonzero(mask).tolist() for name, mask in graph.masks_of(alive).items()}


def _measurable(model: nn.Module, graph: Hypergraph, kept: Masks) -> nn.Module:
    return cut_for_measurement(model, graph, kept)


def _ratios(model: nn.Module, graph: Hypergraph, given: float | Mapping[str, float]) -> Scores:
    """The share of channels to remove, by edge."""
    result = np.zeros(len(graph.edges))
    for name, ratio in given.items() if isinstance(given, Mapping) else [("", given)]:
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
            raise GatorError(f"ratios{f' of {name!r}' if name else ''} is {ratio!r}; expected a share from 0 to 1")
        result[list(edges_named(model, graph, [name], "ratios")) if name else slice(None)] = ratio
    return result


def _by_ratio(graph: Hypergraph, limits: Limits, scores: Scores, ratios: Scores) -> Alive:
    """The channels left when every edge loses its share, rounded so that no more is removed than was asked for."""
    alive: Alive = np.ones(len(scores), dtype=bool)
    for index, edge in enumerate(graph.edges):
        wanted = edge.width * (1 - ratios[index])
        width = min([edge.width, *(w for w in limits.widths_down(index, edge.width) if w >= wanted - 1e-9)])
        order = np.argsort(scores[graph.starts[index] : graph.starts[index + 1]], kind="stable")
        alive[graph.starts[index] + order[: edge.width - width]] = False
    edge_index = disconnecting_edge(graph, np.ones(len(scores), dtype=bool), alive)
    if edge_index is not None:
        name = graph.edges[edge_index].name
        raise KeptError(
            f"ratios= would remove all channels of edge {name!r}, which disconnects the output from the input", name
        )
    return alive


def _chosen(budget: Budget, scores: Scores, cost_limit: float, steering: Sequence[Prices]) -> Alive:
    """The channels left: in one go by score or, for every cost that steers, by score for what a channel costs.

    Edges then trade channels as long as that keeps more, and the way that keeps most is taken.
    """
    graph, prices, limits = budget.graph, budget.prices, budget.limits
    everything: Alive = np.ones(len(scores), dtype=bool)
    if not steering:
        return project(graph, prices, limits, everything, scores, cost_limit)
    full_cost = budget.cost(everything)

    def steered(by: Prices) -> Alive:
        alive = everything
        for step in range(1, _ROUNDS + 1):  # prices are those at the widths of the round
            wanted = full_cost * (cost_limit / full_cost) ** (step / _ROUNDS)
            alive = project(graph, prices, limits, alive, scores, wanted, per=by)
        return traded(graph, prices, limits, alive, scores, cost_limit)

    found = [steered(steering[0])]  # raises if the target cannot be reached
    for by in steering[1:]:
        with suppress(BudgetError):  # this way may end before the target
            found.append(steered(by))
    return max(found, key=lambda alive: float(scores[alive].sum()))


def _scores(
    model: nn.Module, graph: Hypergraph, criterion: Criterion | CriterionFunction, loss: Callable[[], Tensor] | None, seed: int,
    kept: Sequence[int],
) -> Scores:  # fmt: skip
    tensors = named_tensors(baked(model))
    if criterion == "random":
        return np.random.default_rng(seed).random(sum(edge.width for edge in graph.edges))
    with _gradients(model, loss) as gradients:
        found = []
        for index, edge in enumerate(graph.edges):
            if criterion == "taylor" and index not in kept:
                _check_has_gradient(graph, edge, gradients)
            values = _of_norms(graph, edge, tensors) if criterion == "bn_scale" else None
            if values is None:  # an edge without norm layers falls back to the size of its filters
                rule = criterion if callable(criterion) else _OF_PRODUCERS.get(criterion, _l1)
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


def _check_has_gradient(graph: Hypergraph, edge: Edge, gradients: Mapping[str, Tensor]) -> None:
    """Raise for an edge none of whose weights has a gradient: its channels would be chosen by their position."""
    names = [parameter for parameter, _ in _written(graph, edge)]
    if not any(name in gradients for name in names):
        raise GatorError(
            f'criterion="taylor" needs the gradient of a weight that writes edge {edge.name!r}, and none of these has one: '
            f"{', '.join(names)}\n  Unfreeze the layer, remove its weight_norm or spectral_norm, leave the edge as it is with "
            f"keep=[{edge.name!r}], or choose another criterion."
        )


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
        values = _checked(rule(rows, slopes), edge).cpu().double().numpy()
        if len(values) != len(units):
            raise GatorError(
                f"the criterion returned {len(values)} scores for {parameter}, expected one for each of its "
                f"{len(units)} channels"
            )
        for position, unit in enumerate(units):
            if unit >= 0:
                total[unit] += values[position]
    return total


def _checked(values: Any, edge: Edge) -> Tensor:
    if not isinstance(values, Tensor) or values.ndim != 1 or not bool((torch.isfinite(values) & (values >= 0)).all()):
        raise GatorError(f"the criterion returned {values!r} for edge {edge.name!r}; expected one score per channel, 0 or more")
    return values.detach()


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
