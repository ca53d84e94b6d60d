"""Work that only rank 0 of several processes does, with the result (or the error) shared with all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed as dist

from gator.errors import GatorError, RunError

T = TypeVar("T")


def on_rank_zero(action: Callable[[], T]) -> T:
    """Call `action` on rank 0 and return its result on every rank; without torch.distributed, just call it.

    What `action` raises is raised on rank 0 as it is and on the other ranks as a RunError with the same message. That holds
    for a KeyboardInterrupt and a SystemExit too: the other ranks are waiting for an answer.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return action()
    answer: list[Any] = [None, ""]  # the result, and the message of an error
    problem: BaseException | None = None
    if dist.get_rank() == 0:
        try:
            answer = [action(), ""]
        except BaseException as error:
            text = f"rank 0 raised {type(error).__name__}" + (f": {error}" if str(error) else "")
            answer, problem = [None, (isinstance(error, GatorError) and str(error)) or text], error
    dist.broadcast_object_list(answer, src=0)
    if problem is not None:
        raise problem
    if answer[1]:
        raise RunError(answer[1])
    result: T = answer[0]
    return result
