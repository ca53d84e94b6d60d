"""The graph of a network in training with gates, for networks with a reader that cannot be reached in their own forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from gator.gates.gated_reader import GatedReader
from gator.graph.program import Call, Mode
from gator.surgery.emit_masked import MaskedEmitter
from gator.surgery.layers import Leaf
from gator.surgery.live_call import OperatorCall
from gator.surgery.plan import Plan


class GatedEmitter(MaskedEmitter):
    """`plan` holds only edges that are closed altogether: behind those the network takes another form, a constant."""

    def __init__(
        self, plan: Plan, mode: Mode, model: nn.Module, canonical: Mapping[str, str], readers: Mapping[int, GatedReader]
    ) -> None:
        super().__init__(plan, mode, model, canonical)
        self._readers = readers

    def write(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        reader = self._readers.get(call.index)
        if reader is None:
            return super().write(call, leaf, args)
        return self.read(call, lambda named: reader(OperatorCall(call, named)), args)
