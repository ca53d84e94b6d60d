"""A description of how a network is called: the structure, shapes and dtypes of the example inputs, without the tensors
themselves, and which outputs matter.

The graph does not depend on the data of the inputs. For integers (token ids) the range of the values is kept, so that random
inputs can be generated that the network accepts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gator.errors import GatorError, TraceError
from gator.graph.json_fields import counts, field, strings
from gator.graph.tensor_identity import without_data
from gator.private_torch import pytree

DTYPES = {str(found).removeprefix("torch."): found for found in vars(torch).values() if isinstance(found, torch.dtype)}
MAX_ELEMENTS = 2**28  # of one example tensor in JSON: a file with more is damaged


@dataclass(frozen=True)
class TensorSpec:
    """Shape, dtype and, for integers, the range of one example tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: int = 0
    high: int = 1

    def random(self, generator: torch.Generator, batch: int | None) -> torch.Tensor:
        shape = self.shape if batch is None else (batch, *self.shape[1:])
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(shape, dtype=self.dtype, generator=generator)
        values = torch.randint(self.low, max(self.high, self.low) + 1, shape, generator=generator)
        return values.to(self.dtype)


@dataclass(frozen=True)
class Inputs:
    """The arguments of a forward call, flattened: tensors as TensorSpec, other arguments unchanged; and the outputs to keep."""

    leaves: tuple[Any, ...]
    structure: pytree.TreeSpec  # of (args, kwargs)
    batch: int | None  # the size of axis 0 of the batched tensors
    outputs: tuple[str, ...] = ()  # names of the outputs that matter; all of them if it is empty

    def batched(self, spec: TensorSpec) -> bool:
        return self.batch is not None and len(spec.shape) > 0 and spec.shape[0] == self.batch

    def random(self, *, batch: int | None = None, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Random inputs of the right shapes, as (args, kwargs); floats are normally distributed."""
        generator = torch.Generator().manual_seed(seed)
        leaves = [
            leaf.random(generator, batch if self.batched(leaf) else None) if isinstance(leaf, TensorSpec) else leaf
            for leaf in self.leaves
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return args, kwargs

    def to_data(self) -> dict[str, Any]:
        """As plain data for JSON. Raises GatorError for arguments that JSON cannot represent."""
        args, kwargs = pytree.tree_unflatten(list(self.leaves), self.structure)
        data = {"args": [_to_data(arg) for arg in args], "kwargs": _to_data(kwargs)["dict"], "batch": self.batch}
        return {**data, "outputs": list(self.outputs)} if self.outputs else data

    @staticmethod
    def from_data(data: Any) -> Inputs:
        """From plain data. Raises ValueError for data that `to_data` cannot have made."""
        batch = data.get("batch") if type(data) is dict else None
        if batch is not None and (type(batch) is not int or batch < 0):
            raise ValueError(f"the batch is {batch!r}")
        args, kwargs = field(data, "args", list), field(data, "kwargs", dict)
        call = (tuple(_from_data(arg) for arg in args), {name: _from_data(arg) for name, arg in kwargs.items()})
        leaves, structure = pytree.tree_flatten(call)
        if not any(isinstance(leaf, TensorSpec) for leaf in leaves):
            raise ValueError("no tensor among the example inputs")
        return Inputs(tuple(leaves), structure, batch, strings(data, "outputs") if "outputs" in data else ())


def _to_data(arg: Any) -> Any:
    """Containers and tensors become objects with one key, their type; other values are stored as they are."""
    if isinstance(arg, TensorSpec):
        dtype = str(arg.dtype).removeprefix("torch.")
        return {"tensor": {"shape": list(arg.shape), "dtype": dtype, "low": arg.low, "high": arg.high}}
    if type(arg) in (tuple, list):
        return {type(arg).__name__: [_to_data(item) for item in arg]}
    if type(arg) is dict and all(isinstance(name, str) for name in arg):
        return {"dict": {name: _to_data(item) for name, item in arg.items()}}
    if arg is None or type(arg) in (bool, int, float, str):
        return arg
    raise GatorError(f"the example inputs hold a {type(arg).__name__}, which JSON cannot represent")


def _from_data(data: Any) -> Any:
    if isinstance(data, list) or (isinstance(data, dict) and len(data) != 1):
        raise ValueError("an argument that is neither a value nor an object with one key")
    if not isinstance(data, dict):
        return data
    (kind,) = data
    if kind == "tensor":
        return _spec_from_data(data[kind])
    if kind in ("tuple", "list"):
        items = [_from_data(item) for item in field(data, kind, list)]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {name: _from_data(item) for name, item in field(data, kind, dict).items()}
    raise ValueError(f"unknown kind of argument: {kind!r}")


def _spec_from_data(data: Any) -> TensorSpec:
    shape, low, high, dtype = (
        counts(data, "shape"),
        field(data, "low", int),
        field(data, "high", int),
        field(data, "dtype", str),
    )
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise ValueError(f"an example tensor of shape {list(shape)}")
    if not -(2**63) <= low <= high < 2**63 - 1:
        raise ValueError(f"an example tensor with values from {low} to {high}")
    if dtype not in DTYPES:
        raise ValueError(f"an example tensor of type {dtype!r}")
    return TensorSpec(shape, DTYPES[dtype], low, high)


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


def describe(example_inputs: Any, outputs: Sequence[str] = ()) -> Inputs:
    leaves, structure = pytree.tree_flatten(as_call(example_inputs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise TraceError("example_inputs holds no tensor; pass the tensors the network's forward takes")
    sizes = [leaf.shape[0] for leaf in tensors if leaf.ndim > 0]
    return Inputs(
        leaves=tuple(_spec(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves),
        structure=structure,
        batch=sizes[0] if sizes else None,
        outputs=tuple(outputs),
    )


def _spec(tensor: torch.Tensor) -> TensorSpec:
    low, high = 0, 1
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.numel() and not without_data(tensor):
        low, high = int(tensor.min()), int(tensor.max())
    return TensorSpec(tuple(tensor.shape), tensor.dtype, low, high)
