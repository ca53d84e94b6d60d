"""`modes_set`: put a model in train or eval mode inside a block, and restore its modes and attributes afterwards."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def modes_set(model: nn.Module, training: bool) -> Iterator[None]:
    """Put the model in train or eval mode inside the block; then restore the flags and attributes of all its modules.

    Some networks cache results between calls (an attention bias, for example) and clear the cache when train() is called. So
    train() is called first in either mode, and the cache is restored afterwards.
    """
    modules = list(model.modules())
    attributes = [dict(module.__dict__) for module in modules]
    containers: list[tuple[Any, Any]] = []
    for state in attributes:
        for name, value in state.items():
            if type(value) not in _CONTAINERS:
                continue
            if not value or name in _MODULE_DICTS:
                containers.append((value, value.copy() if value else ()))
            else:
                _note(value, containers)
    python_random = random.getstate()
    try:
        model.train(True)
        model.train(training)
        yield
    finally:
        random.setstate(python_random)
        for module, state in zip(modules, attributes, strict=True):
            module.__dict__.clear()
            module.__dict__.update(state)
        for value, before in containers:
            if isinstance(value, list):
                value[:] = before
            elif value or before:
                value.clear()
                (value.extend if isinstance(value, deque) else value.update)(before)


def _note(value: Any, containers: list[tuple[Any, Any]]) -> None:
    """Note what a container holds, and what the containers inside it hold."""
    if type(value) in _CONTAINERS:
        containers.append((value, value.copy() if value else ()))
        for item in value.values() if isinstance(value, dict) else value:
            _note(item, containers)


_MODULE_DICTS = ("_parameters", "_buffers", "_modules")  # they contain no containers
_CONTAINERS = frozenset((dict, list, set, OrderedDict, deque))
