"""Fold the batch norms of a network in eval mode into the convolutions before them."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from gator.private_torch import BatchNorm

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CLOSE = 1e-3  # how much the output may change, relative to the largest score


def folded(network: nn.Module, x: Tensor) -> nn.Module:
    """The network with batch norms folded, or the network itself if torch.fx cannot trace it or the output for `x` changes."""
    try:
        result = _folded(fx.symbolic_trace(network))
    except Exception:  # code that torch.fx cannot follow may raise anything
        return network
    with torch.no_grad(), torch.random.fork_rng():
        expected, found = network(x), result(x)
    same = isinstance(expected, Tensor) and (expected - found).abs().max() <= _CLOSE * expected.abs().max()
    return result if same else network


def _folded(traced: fx.GraphModule) -> fx.GraphModule:
    uses = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in list(traced.graph.nodes):
        before = node.args[0] if node.args else None
        if node.op != "call_module" or not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        convolution, norm = (traced.get_submodule(str(each.target)) for each in (before, node))
        if (
            isinstance(convolution, _CONVOLUTIONS)
            and isinstance(norm, BatchNorm)
            and uses[before.target] == uses[node.target] == 1
        ):
            traced.set_submodule(str(before.target), fuse_conv_bn_eval(convolution, norm))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.recompile()
    return traced
