"""FSDP2 (`fully_shard`) with gates on two processes: the masks that DDP gives; what cannot be done is refused."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import torch
from gates.processes import join, start
from support import gap
from torch import distributed as dist
from torch import nn
from torch.nn import functional

import gator
from gator import zoo
from gator.gates.sharded import is_sharded

pytestmark = [pytest.mark.trains, pytest.mark.slow, pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")]

STEPS, EXAMPLES = 40, 6
GOALS = {"target": {"target": 0.4, "steps": STEPS}, "alpha": {"alpha": 8.0, "per": "batch", "gamma": 1.0}}
EMPTY = "blocks.1.conv1"  # an edge that is closed altogether: its block becomes a constant


def built() -> nn.Module:
    torch.manual_seed(0)
    return zoo.build("digits:resnet").model.double()


def shard(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def parallel(model: nn.Module, *, broadcast_buffers: bool) -> nn.Module:
    ddp = nn.parallel.DistributedDataParallel
    return ddp(model, find_unused_parameters=True, broadcast_buffers=broadcast_buffers)


def train(rank: int, goal: str, wrap) -> tuple[gator.Pruner, nn.Module]:
    model = built()
    pruner = gator.Pruner(model, torch.zeros(2, 1, 8, 8).double(), **GOALS[goal])
    if goal == "alpha":
        edge = next(index for index, edge in enumerate(pruner.graph.edges) if EMPTY in edge.producers)
        with torch.no_grad():
            pruner.gates.logits[pruner.gates.of_edge(edge)] = -1.0
    running = wrap(model)
    optimizer = torch.optim.AdamW(running.parameters(), lr=0.003)
    torch.manual_seed(1 + rank)
    model.train()
    for _ in range(STEPS):
        x, y = torch.randn(EXAMPLES, 1, 8, 8).double(), torch.randint(0, 10, (EXAMPLES,))
        loss = functional.cross_entropy(running(x), y) + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.step(lr=0.05)
    return pruner, model


def refused(words: str, action) -> None:
    with pytest.raises(gator.GatorError, match=words):
        action()


def check(rank: int, goal: str) -> None:
    """Executed by both processes."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    # FSDP leaves every process its own batch-norm statistics. They matter in training only where a block is a constant.
    usual, _ = train(rank, goal, partial(parallel, broadcast_buffers=goal == "target"))
    pruner, model = train(rank, goal, shard)
    assert is_sharded(model)
    assert torch.equal(pruner.gates.alive, usual.gates.alive)
    for name, value in pruner.gates.state().items():
        assert torch.allclose(value, usual.gates.state()[name], rtol=1e-9), name
    assert 0 < int(pruner.gates.alive.sum()) < len(pruner.gates)  # so this can fail
    if goal == "alpha":
        assert pruner.kept[EMPTY] == []

    refused(r"(?s)cut\(\) needs all weights .* gator.cut\(model, pruner.graph, pruner.kept\)", pruner.cut)
    refused(r"shrink_\(\) needs all weights", pruner.shrink_)
    refused("building the smaller network needs all weights", pruner.cut_so_far)
    refused(r"the model is sharded; make the pruner first", lambda: gator.Pruner(model, torch.zeros(1, 1, 8, 8), alpha=1.0))

    fresh = built()
    fresh.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
    small = gator.cut(fresh, pruner.graph, pruner.kept).eval()
    x = torch.randn(4, 1, 8, 8).double()
    model.eval()
    with torch.no_grad():
        assert gap(model(x), small(x)) < 1e-8  # sharded and masked, against cut
    pruner.detach()


class Estimated(gator.Flops):
    """A cost whose prices are estimates, as those of latency are."""

    def on(self, model, graph):
        prices = super().on(model, graph)
        type(prices).tolerance = 0.03
        return prices


def check_estimates(rank: int) -> None:
    model = built()
    pruner = gator.Pruner(model, torch.zeros(2, 1, 8, 8).double(), cost=Estimated(), target=0.5, steps=10)
    shard(model)
    model.train()
    (model(torch.randn(4, 1, 8, 8).double()).sum() + pruner.loss()).backward()
    refused("this cost is measured on cut networks, and a model that is sharded cannot be cut", lambda: pruner.step(lr=0.1))


@pytest.mark.parametrize("what", [*GOALS, "estimates"])
def test_fully_shard(what) -> None:
    assert [process.wait(600) for process in start(__file__, 2, what)] == [0, 0]


if __name__ == "__main__":
    (what,) = sys.argv[1:]
    number = join()
    check_estimates(number) if what == "estimates" else check(number, what)
    dist.destroy_process_group()
