"""What one of several processes does for all of them: they must not come to different conclusions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed as dist

from gator.errors import GatorError, RunError

T = TypeVar("T")


def by_first(action: Callable[[], T]) -> T:
    """What the first process gets from an action that only it may do; what goes wrong there, all processes raise."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return action()
    box: list[Any] = [None, ""]
    problem: Exception | None = None
    if dist.get_rank() == 0:
        try:
            box = [action(), ""]
        except Exception as error:  # whatever it is, the others wait for an answer
            box, problem = [None, f"{error}" if isinstance(error, GatorError) else f"{type(error).__name__}: {error}"], error
    dist.broadcast_object_list(box, src=0)
    if box[1]:
        raise problem or RunError(box[1])
    found: T = box[0]
    return found
