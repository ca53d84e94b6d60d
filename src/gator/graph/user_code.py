"""Where a call comes from: the line of the user's code, the module whose forward runs, and the call of the original network."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType

import torch

from gator.private_torch import CALL_IMPL

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = tuple(str(Path(__file__).with_name(name)) for name in ("user_code.py", "dispatch_mode.py", "function_calls.py"))


def place_in_user_code(
    modules: Mapping[int, str] | None = None, origins: Mapping[CodeType, Mapping[int, str]] | None = None
) -> tuple[str, str, str]:
    """(file:line in function of the user's code, name of the innermost module, name of the call in the original network)."""
    frame = sys._getframe(1)
    source, module, origin = "", None, ""
    while frame is not None:
        code = frame.f_code
        if module is None and modules is not None and code is CALL_IMPL:
            module = modules.get(id(frame.f_locals.get("self")))
        if origins and code in origins:
            origin = origins[code].get(frame.f_lineno, "")
        if not source and code.co_filename not in _OURS and not code.co_filename.startswith((_TORCH, "<")):
            source = f"{code.co_filename}:{frame.f_lineno} ({code.co_name})"
        if source and (module is not None or modules is None) and (origin or not origins):
            break
        frame = frame.f_back  # type: ignore[assignment]
    return source, module or "", origin
