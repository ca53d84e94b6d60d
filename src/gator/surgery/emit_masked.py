"""`MaskedEmitter`: the graph of a masked network, with removed channels kept out wherever an operator mixes channels.

Networks run their own forward with a mask (own_forward.py). This is for those with a reader that cannot be reached there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx, nn

from gator.graph.program import Call
from gator.surgery.emit import Emitter
from gator.surgery.layers import Leaf
from gator.surgery.live_call import OperatorCall
from gator.surgery.masked_reader import masked_reader


class Flag(nn.Module):
    """Returns whether another module is in train mode."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = (module,)  # in a tuple, so that it is not registered as a submodule

    def forward(self) -> bool:
        return self._module[0].training


class MaskedEmitter(Emitter):
    """Refers to the model's own layers and parameters."""

    def flag(self, module: str) -> fx.Node:
        key = "_flag_" + module.replace(".", "_")
        self.objects[key] = Flag(self.model.get_submodule(module))
        return self.graph.call_module(key, ())

    def write(self, call: Call, leaf: Leaf | None, args: dict[str, Any]) -> Any:
        reader = masked_reader(self.plan, self.mode, self.liveness, call)
        if reader is None:
            return self.plain(call, leaf, args)
        return self.read(call, lambda named: reader(OperatorCall(call, named)), args)

    def read(self, call: Call, run: Callable[[dict[str, Any]], Any], args: dict[str, Any]) -> fx.Node:
        """A node that runs a reader with the arguments of the call."""

        def reader(**named: Any) -> Any:
            return run(named)

        reader.__name__ = reader.__qualname__ = f"{call.packet.__name__}_of_channels"
        return self.graph.call_function(reader, (), args)
