"""What is trained with closed gates is what is cut: in train mode and in eval mode, on networks of many kinds."""

from __future__ import annotations

import copy

import pytest
import torch
from small import SmallResNet, close, steady
from support import gap, randomised
from torch import nn
from torch.nn import functional

import gator
from gator import zoo


class GroupNormUNet(nn.Module):
    """Concatenated skips, and norms over groups of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 2, 1)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, 8), nn.GroupNorm(4, 16)])
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 8, 3, 1, 1)
        self.norm = nn.GroupNorm(1, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        one = torch.relu(self.norms[0](self.down[0](x)))
        two = torch.relu(self.norms[1](self.down[1](one)))
        return self.head(torch.relu(self.norm(self.last(torch.cat([one, self.up(two)], 1)))))


def build(name):
    if name == "groupnorm_unet":
        return GroupNormUNet(), torch.randn(2, 3, 16, 16)
    if name == "small_resnet":
        return SmallResNet(6), torch.randn(3, 1, 8, 8)
    network = zoo.build(name)
    return network.model, torch.randn(2, 3, 32, 32) if "cifar" in name else torch.randn(2, 3, 64, 64)


def tiny_vit(torchvision):
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48, num_classes=7
    )


NETWORKS = ["small_resnet", "cifar:resnet20", "densenet", "mobilenet_v3", "convnext", "vit", "groupnorm_unet"]


def network(name, torchvision):
    models = torchvision.models
    if name == "densenet":
        return models.DenseNet(8, (2, 2), 16, num_classes=5), torch.randn(3, 3, 64, 64)
    if name == "mobilenet_v3":
        return models.mobilenet_v3_small(num_classes=5, dropout=0.0), torch.randn(3, 3, 64, 64)
    if name == "convnext":
        settings = [models.convnext.CNBlockConfig(16, 32, 2), models.convnext.CNBlockConfig(32, None, 2)]
        return models.ConvNeXt(settings, stochastic_depth_prob=0.0, num_classes=5), torch.randn(2, 3, 32, 32)
    if name == "vit":
        return tiny_vit(torchvision), torch.randn(2, 3, 32, 32)
    return build(name)


@pytest.mark.parametrize("per", ["example", "batch"])
@pytest.mark.parametrize("name", NETWORKS)
def test_masked_while_training_is_cut_afterwards(name, per, torchvision):
    torch.manual_seed(0)
    model, x = network(name, torchvision)
    model = randomised(model)
    x = x.double()
    whole = copy.deepcopy(model)
    pruner = gator.Pruner(model, x, alpha=1.0, per=per)
    close(pruner, 0.4)
    steady(pruner)
    assert pruner.cost_left < 0.9 * pruner.whole_cost
    evaluated = model.eval()(x)
    buffers = copy.deepcopy(dict(model.named_buffers()))
    trained = model.train()(x)
    for buffer, before in zip(model.buffers(), buffers.values(), strict=True):
        buffer.data.copy_(before)  # running statistics moved on
    small = pruner.cut()
    assert gap(evaluated, small.eval()(x)) <= 1e-8
    assert gap(trained, small.train()(x)) <= 1e-8
    assert gap(evaluated, whole.eval()(x)) > 1e-3  # so the test can fail
    assert gap(trained, whole.train()(x)) > 1e-3
    assert gator.measure(small, x).macs == pruner.cost_left


@pytest.mark.parametrize("name", NETWORKS)
def test_gates_reach_every_edge(name, torchvision):
    """With noise, every gate that is drawn shut changes the loss of the network, so its logit has a gradient."""
    torch.manual_seed(0)
    model, x = network(name, torchvision)
    model = randomised(model).train()
    x = x.double()
    for per in ("example", "batch"):
        pruner = gator.Pruner(model, x, alpha=0.0, per=per)
        with torch.no_grad():
            pruner.gates.logits.fill_(1.0)
        result = model(x)
        functional.mse_loss(result, torch.randn_like(result)).backward()
        moved = pruner.gates.logits.grad.abs() > 0
        for index, edge in enumerate(pruner.graph.edges):
            assert moved[pruner.gates.of_edge(index)].any(), edge.name
        pruner.detach()


@pytest.mark.parametrize("name", ["small_resnet", "vit", "convnext", "groupnorm_unet", "densenet"])
def test_a_draw_is_a_mask(name, torchvision):
    """A whole batch drawn alike computes what the mask of that draw computes, statistics over channels included."""
    torch.manual_seed(0)
    model, x = network(name, torchvision)
    model = randomised(model).train()
    x = x.double()
    graph = gator.trace(model, x)
    for per in ("example", "batch"):
        pruner = gator.Pruner(model, graph=graph, alpha=1.0, per=per)
        noise = torch.randn(1, len(pruner.gates)).double() - 5.0
        pruner.gates.noise = lambda rows, n=noise: n.expand(rows, -1)
        result = model(x)
        open_ = pruner._forward.last[0].detach().bool().numpy()
        pruner.detach()
        kept = {e.name: open_[graph.starts[i] : graph.starts[i + 1]] for i, e in enumerate(graph.edges)}
        assert all(mask.any() for mask in kept.values())
        with gator.masked(model, graph, kept):
            assert gap(result, model(x)) <= 1e-8


def test_a_block_that_is_gone_is_gone_in_training_too():
    """All inner channels closed: the block's norm has nothing to count, in training as after the cut."""
    torch.manual_seed(0)
    model = randomised(SmallResNet(6))
    x = torch.randn(3, 1, 8, 8).double()
    pruner = gator.Pruner(model, x, alpha=1.0)
    with torch.no_grad():
        inner = next(i for i, edge in enumerate(pruner.graph.edges) if edge.name == "blocks.1.conv1")
        pruner.gates.logits[pruner.gates.of_edge(inner)] = -1.0
    pruner._close()
    steady(pruner)
    expected = pruner.cut().train()(x)
    assert gap(model.train()(x), expected) <= 1e-8
    with torch.no_grad():
        pruner.gates.logits[pruner.gates.of_edge(0)] = -1.0  # the highway may lose all but one
    pruner._close()
    assert int(pruner.gates.widths()[0]) == 1
    assert pruner.cut() is not None
