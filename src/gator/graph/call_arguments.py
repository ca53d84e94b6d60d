"""The arguments of a call as the dispatcher passes them: the tensors in them, their names, and which one is overwritten."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gator.private_torch import schema_of


def tensors_in(arg: Any) -> Iterator[torch.Tensor]:
    if isinstance(arg, torch.Tensor):
        yield arg
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from tensors_in(item)


def map_tensors(arg: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(arg, torch.Tensor):
        return change(arg)
    if isinstance(arg, (list, tuple)):
        return type(arg)(map_tensors(item, change) for item in arg)
    if isinstance(arg, dict):
        return {key: map_tensors(item, change) for key, item in arg.items()}
    return arg


def on_meta_device(arg: Any) -> Any:
    return torch.device("meta") if isinstance(arg, torch.device) else arg


@functools.cache
def _schema_names(func: Any) -> tuple[tuple[str, ...], bool]:
    arguments = schema_of(func).arguments
    writes = bool(arguments) and arguments[0].alias_info is not None and arguments[0].alias_info.is_write
    return tuple(a.name for a in arguments if not a.kwarg_only), writes


def named_arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names, _ = _schema_names(func)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def mutated_argument(func: Any, args: Any) -> torch.Tensor | None:
    return args[0] if _schema_names(func)[1] else None
