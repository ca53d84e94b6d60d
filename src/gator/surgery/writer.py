"""The interface that rewritten calls are written to.

emit.py implements it by adding nodes to a graph, branch_constants.py by running the operators at once to compute constants. The
rewrites of rewrite.py use this interface alone, so both treat every operator in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from gator.graph.program import BatchInt, Call, ImageInt
from gator.private_torch import schema_of
from gator.surgery.sizes import Cutting

aten = torch.ops.aten


class Writer(ABC):
    """Receives the calls of one program after a cut. Its tensors are nodes of a graph, or real tensors."""

    cutting: Cutting

    @abstractmethod
    def call(self, op: Any, args: tuple[Any, ...], keywords: dict[str, Any] | None = None) -> Any:
        """Call an operator."""

    @abstractmethod
    def size(self, size: int) -> Any:
        """A size as an argument."""

    @abstractmethod
    def sizes(self, value: int) -> list[Any]:
        """The shape of a value as an argument of a reshape."""

    @abstractmethod
    def index_tensor(self, positions: Any, name: str) -> Any:
        """Positions on an axis as a tensor."""

    @abstractmethod
    def device(self) -> Any:
        """The device the network runs on."""

    def argument(self, value: Any) -> Any:
        """A new argument: sizes and lists of sizes are converted, other values stay the same."""
        if isinstance(value, (list, tuple)):
            return [self.argument(item) for item in value]
        return self.size(value) if isinstance(value, (BatchInt, ImageInt)) else value

    def call_op(self, op: Any, args: dict[str, Any]) -> Any:
        """Call an operator with arguments by name; they are passed by position where that is possible."""
        positional, keywords, gap = [], {}, False
        for argument in schema_of(op).arguments:
            if argument.name not in args:
                gap = True
                continue
            if gap or argument.kwarg_only:
                keywords[argument.name] = args[argument.name]
            else:
                positional.append(args[argument.name])
        return self.call(op, tuple(positional), keywords)

    def memory_is_written(self, call: Call) -> bool:
        """Whether an in-place call writes into the memory of this view: then it must stay a view."""
        program = self.cutting.program
        values = program.values
        shown, made = values[call.value_at("self")].storage, values[call.outputs[0] or 0].storage
        return shown == made and any(c.mutates is not None and values[c.mutates].storage == shown for c in program.calls)
