"""`experts_batched`: mixtures of experts of transformers are recorded as products of fixed shapes.

One of its implementations, "eager", loops over the experts that were chosen for some token and so depends on the data. The
others compute the same with shapes that are known in advance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import nn

LOOP, BATCHED = "eager", "batched_mm"  # names that transformers gives its implementations


@runtime_checkable
class ChoosesExperts(Protocol):
    """A network of transformers, which can be told how to compute its experts."""

    def get_experts_implementation(self) -> dict[str, str | None]: ...
    def set_experts_implementation(self, experts_implementation: Mapping[str, str]) -> None: ...


@contextmanager
def experts_batched(model: nn.Module) -> Iterator[None]:
    """Inside the block no mixture of experts loops over its experts; afterwards each is as it was."""
    kinds = tuple(kind for kind in {type(module) for module in model.modules()} if issubclass(kind, ChoosesExperts))
    choosing: list[Any] = [module for module in model.modules() if isinstance(module, kinds)]
    found = [(module, _named(module)) for module in choosing]
    looping = [(module, chosen) for module, chosen in found if LOOP in chosen.values()]
    try:
        for module, chosen in looping:
            module.set_experts_implementation({part: BATCHED if name == LOOP else name for part, name in chosen.items()})
        yield
    finally:
        for module, chosen in looping:
            module.set_experts_implementation(chosen)


def _named(module: ChoosesExperts) -> dict[str, str]:
    return {part: name for part, name in module.get_experts_implementation().items() if name is not None}
