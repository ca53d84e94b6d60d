"""A network chosen by a criterion on its weights, or by a function of the user's, instead of by training with gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gator.cost.prices import Cost
from gator.cost.target import parse_target
from gator.gates.one_shot import one_shot
from gator.graph.hypergraph import Hypergraph
from gator.surgery.cut import cut
from gator.surgery.keep_class import trace
from gator.surgery.plan import Plan
from gator.training.evaluate import class_scores
from gator.training.recipe import Recipe
from gator.zoo.data import Loader

Choose = Callable[[nn.Module, Hypergraph, float], Mapping[str, Any]]  # network, graph and target cost to the kept channels
_EXAMPLES = 1000  # that gradients are computed on


def chosen_by_criterion(
    model: nn.Module, example: Tensor, cost: Cost, target: float | str, recipe: Recipe, train: Loader, choose: Choose | None
) -> tuple[nn.Module, float, Hypergraph]:
    """The cut network, what it costs as a share of the cost of `model`, and the graph of `model`."""
    settings, criterion = recipe.prune, recipe.prune.criterion
    graph = trace(model, example, keep_class=settings.keep_class)
    prices = cost.on(model, graph)
    whole = prices.total([edge.width for edge in graph.edges])
    goal = parse_target(target, whole, cost.unit)
    if choose is not None:
        kept = choose(model, graph, goal)
    else:
        assert criterion is not None
        assert criterion != "function"
        images, labels = _examples(train, example.device)
        kept = one_shot(
            model.eval(), graph, criterion, target=f"{goal!r} {cost.unit}", cost=cost, seed=recipe.seed,
            loss=(lambda: functional.cross_entropy(class_scores(model(images)), labels)) if criterion == "taylor" else None,
            min_width=max(settings.min_width, 1), round_to=settings.round_to, keep=settings.keep,
        )  # fmt: skip
    small = cut(model, graph, kept)
    masks = Plan(graph, kept).masks
    return small, prices.total([int(masks[edge.name].sum()) for edge in graph.edges]) / whole, graph


def _examples(train: Loader, device: torch.device) -> tuple[Tensor, Tensor]:
    images, labels = [], []
    for x, y in train.batches(0):
        images.append(x)
        labels.append(y)
        if sum(map(len, labels)) >= _EXAMPLES:
            break
    return torch.cat(images).to(device), torch.cat(labels).to(device)
