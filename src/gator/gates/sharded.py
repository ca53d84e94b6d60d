"""Models that `torch.distributed.fsdp.fully_shard` (FSDP2) has split over processes: gates work, cutting them does not.

While a layer runs it has its whole weight, so gates and masks compute the same as without sharding. A copy of the model, which
a cut starts from, cannot be made: every process has a part of each weight only.
"""

from __future__ import annotations

import sys

from torch import nn

from gator.errors import GatorError


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard`, or the older FullyShardedDataParallel, holds parameters of the model."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # importing it takes long, and whoever shards a model has imported it
    kinds = () if fsdp is None else (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
    return any(isinstance(module, kinds) for module in model.modules())


def check_unsharded(model: nn.Module, what: str) -> None:
    """Raise if the model is sharded; `what` cannot be done then."""
    if is_sharded(model):
        raise GatorError(
            f"{what} needs all weights of the model, which is sharded\n"
            "  Load its full state_dict (torch.distributed.checkpoint.state_dict.get_model_state_dict) into a fresh model\n"
            "  and cut that: gator.cut(model, pruner.graph, pruner.kept)."
        )
