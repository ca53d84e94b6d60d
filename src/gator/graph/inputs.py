"""Example inputs as data: their structure, shapes and types, without the tensors themselves.

What a tensor holds never matters to the graph; for integers (token ids) the range that was seen is kept, so that
inputs made up later for a check are valid ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gator.errors import TraceError


@dataclass(frozen=True)
class TensorSpec:
    """Shape, type and, for integers, the range of one example tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: int = 0
    high: int = 1

    def random(self, generator: torch.Generator, batch: int | None) -> torch.Tensor:
        shape = self.shape if batch is None else (batch, *self.shape[1:])
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(shape, dtype=self.dtype, generator=generator)
        drawn = torch.randint(self.low, max(self.high, self.low) + 1, shape, generator=generator)
        return drawn.to(self.dtype)


@dataclass(frozen=True)
class Inputs:
    """The arguments of a forward call, flattened: tensors as TensorSpec, everything else as it was."""

    leaves: tuple[Any, ...]
    structure: pytree.TreeSpec  # of (args, kwargs)
    batch: int | None  # the size that axis 0 of the batched tensors has

    def batched(self, spec: TensorSpec) -> bool:
        return self.batch is not None and len(spec.shape) > 0 and spec.shape[0] == self.batch

    def random(self, *, batch: int | None = None, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Made-up inputs of the right shapes, as (args, kwargs); floats are normal draws."""
        generator = torch.Generator().manual_seed(seed)
        leaves = [
            leaf.random(generator, batch if self.batched(leaf) else None) if isinstance(leaf, TensorSpec) else leaf
            for leaf in self.leaves
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return args, kwargs


def as_call(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tensor, a tuple of positional or a dict of keyword arguments, as (args, kwargs)."""
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    if isinstance(example_inputs, dict):
        return (), dict(example_inputs)
    raise TraceError(
        f"example_inputs is a {type(example_inputs).__name__}; expected a tensor, a tuple of positional arguments "
        "or a dict of keyword arguments"
    )


def describe(example_inputs: Any) -> Inputs:
    leaves, structure = pytree.tree_flatten(as_call(example_inputs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise TraceError("example_inputs holds no tensor; pass the tensors the network's forward takes")
    sizes = [leaf.shape[0] for leaf in tensors if leaf.ndim > 0]
    return Inputs(
        leaves=tuple(_spec(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves),
        structure=structure,
        batch=sizes[0] if sizes else None,
    )


def _spec(tensor: torch.Tensor) -> TensorSpec:
    low, high = 0, 1
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.numel() and not tensor.is_meta:
        low, high = int(tensor.min()), int(tensor.max())
    return TensorSpec(tuple(tensor.shape), tensor.dtype, low, high)
