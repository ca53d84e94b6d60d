"""The precision that a network computes in: the lowest inside it, and a mode that raises all of it to float64.

Many language models compute their norms and rotary angles in float32 whatever the precision of their weights. Two such networks
agree to float32 and no further, unless the conversions themselves are raised.
"""

from __future__ import annotations

from typing import Any

import torch

from gator.graph.program import Program
from gator.private_torch import TorchDispatchMode

LOWER = (torch.float32, torch.float16, torch.bfloat16)


def lowest_precision(program: Program, weights: torch.dtype) -> torch.dtype:
    """The floating-point type with the largest rounding error among the values of a program and its weights."""
    found = {value.dtype for value in program.values if value.dtype.is_floating_point}
    return max((weights, *sorted(found, key=str)), key=lambda dtype: torch.finfo(dtype).eps)


class InFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, a conversion to a lower precision, and a result that is asked for in one, is in float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **{name: torch.float64 if arg in LOWER else arg for name, arg in (kwargs or {}).items()})
