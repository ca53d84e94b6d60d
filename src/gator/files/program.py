"""A network as a program for other runtimes: exported with torch.export, batch norms folded, with as many free sizes as work.

The batch size is free, and so are the sizes of images where the network computes the same at another size.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from gator.errors import GatorError
from gator.files.fold_program import fold_
from gator.graph.inputs import Inputs, TensorSpec, describe
from gator.private_torch import pytree

CLOSE = 1e-4  # how far an exported network may be from PyTorch, relative to its largest output
_ROUNDINGS = 10  # times PyTorch's own rounding error: other kernels add in another order
_STEP = 32  # by which a second image size differs: most networks halve the size five times


class Flat(nn.Module):
    """A network as a function of the tensors among its arguments, in order; it returns a tensor or a tuple of tensors."""

    def __init__(self, network: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.network = network
        self.inputs = inputs

    def forward(self, *tensors: Tensor) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, TensorSpec) else leaf for leaf in self.inputs.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.inputs.structure)
        found = [leaf for leaf in pytree.tree_leaves(self.network(*args, **kwargs)) if isinstance(leaf, Tensor)]
        return found[0] if len(found) == 1 else tuple(found)


@dataclass(frozen=True)
class Program:
    """An exported network: how to call it, and which sizes are free."""

    exported: ExportedProgram
    reference: Flat  # the network itself, as a function of the tensors among its arguments
    inputs: Inputs
    free_batch: bool
    free_size: bool
    folded: int  # batch norms

    @property
    def sizes(self) -> str:
        """The sizes that the network takes, for people."""
        if not self.free_batch:
            return "the sizes of the example inputs only"
        return "any batch size" + (", any height and width" if self.free_size else "")

    def examples(self, seed: int = 0) -> list[tuple[Tensor, ...]]:
        """Random inputs of every kind that it takes: other batch sizes, another image size."""
        batches = [1, 3] if self.free_batch else [self.inputs.batch]
        found = [_random(self.inputs, batch=batch, seed=seed + index) for index, batch in enumerate(batches)]
        return [*found, _larger(self.inputs, seed)] if self.free_size else found


def program_of(network: nn.Module, example_inputs: Any) -> Program:
    """Export a network in eval mode. Raises GatorError if torch.export cannot, or if no program computes the same."""
    inputs = describe(example_inputs)
    reference = Flat(copy.deepcopy(network).cpu(), inputs).eval()
    problems = []
    for free_batch, free_size in ((True, True), (True, False), (False, False)):
        if (free_size and not _runs_larger(reference, inputs)) or (free_batch and inputs.batch is None):
            continue
        try:
            program = _exported(reference, inputs, free_batch, free_size)
            call = program.exported.module()
            found = compare(reference, call, program.examples())
            if found.fits:
                return program
            problems.append(f"the program differs by {found.difference:.1e} of the largest output")
        except Exception as error:  # torch.export and the program may raise anything; fewer free sizes may work
            problems.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")
    raise GatorError(f"this network cannot be exported: {problems[-1]}")


def _exported(reference: Flat, inputs: Inputs, free_batch: bool, free_size: bool) -> Program:
    # A size of 1 would be taken for a constant.
    arguments = _random(inputs, batch=max(inputs.batch, 2) if free_batch and inputs.batch else inputs.batch)
    batch = Dim("batch", min=1)
    shapes = []
    for spec in (leaf for leaf in inputs.leaves if isinstance(leaf, TensorSpec)):
        free: dict[int, Any] = {0: batch} if free_batch and inputs.batched(spec) else {}
        if free_size and _is_image(spec):
            free |= {2: Dim.AUTO, 3: Dim.AUTO}
        shapes.append(free)
    flat = Flat(copy.deepcopy(reference.network), inputs).eval()  # recording may leave traces in a network
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        flat(*arguments)  # networks that remember the last size do so outside of the recording
        recorded = torch.export.export(flat, arguments, dynamic_shapes=(tuple(shapes),), strict=False)
        module = recorded.module(check_guards=False)
        folded = fold_(module)
        again = torch.export.export(module, arguments, dynamic_shapes=tuple(shapes), strict=False)
    return Program(again, reference, inputs, free_batch, free_size, folded)


def _runs_larger(network: nn.Module, inputs: Inputs) -> bool:
    """Whether the network takes images of another size at all."""
    if not any(isinstance(leaf, TensorSpec) and _is_image(leaf) for leaf in inputs.leaves):
        return False
    try:
        with torch.no_grad():
            network(*_larger(inputs))
    except Exception:  # a network that is bound to one size may raise anything
        return False
    return True


@dataclass(frozen=True)
class Comparison:
    """How far a network is from PyTorch, at worst, and whether that is near enough."""

    difference: float  # relative to the largest value of an output
    fits: bool


def compare(reference: Flat, other: Callable[..., Any], examples: Sequence[tuple[Tensor, ...]]) -> Comparison:
    """Run both on examples. More than `CLOSE` fits only if PyTorch's own rounding error on the same inputs explains it."""
    worst, fits = 0.0, True
    for tensors in examples:
        with torch.no_grad():
            found = _difference(_leaves(reference(*tensors)), _leaves(other(*tensors)))
        worst = max(worst, found)
        fits = fits and (found <= CLOSE or found <= _ROUNDINGS * _own_rounding(reference, tensors))
    return Comparison(worst, fits)


def _difference(expected: list[Tensor], found: list[Tensor]) -> float:
    if len(expected) != len(found):
        raise GatorError(f"{len(found)} outputs instead of {len(expected)}")
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        if a.shape != b.shape:
            raise GatorError(f"an output of shape {tuple(b.shape)} instead of {tuple(a.shape)}")
        if a.numel():
            gap = (a.double() - b.double()).abs().max() / a.double().abs().max().clamp_min(1e-12)
            worst = max(worst, float(gap) if bool(gap.isfinite()) else float("inf"))
    return worst


def _own_rounding(reference: Flat, tensors: tuple[Tensor, ...]) -> float:
    """How far PyTorch is from itself in float64; 0 if the network cannot compute in float64."""
    precise = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors)
    try:
        with torch.no_grad():
            exact = Flat(copy.deepcopy(reference.network).double(), reference.inputs).eval()(*precise)
            return _difference(_leaves(exact), _leaves(reference(*tensors)))
    except Exception:  # constants in float32, for example
        return 0.0


def _leaves(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def _is_image(spec: TensorSpec) -> bool:
    return len(spec.shape) == 4 and spec.dtype.is_floating_point


def _random(inputs: Inputs, *, batch: int | None, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    specs = [leaf for leaf in inputs.leaves if isinstance(leaf, TensorSpec)]
    return tuple(spec.random(generator, batch if inputs.batched(spec) else None) for spec in specs)


def _larger(inputs: Inputs, seed: int = 0) -> tuple[Tensor, ...]:
    """Random inputs whose images are larger, and not square."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for spec in (leaf for leaf in inputs.leaves if isinstance(leaf, TensorSpec)):
        shape = list(spec.shape)
        if _is_image(spec):
            shape[2:] = [shape[2] + _STEP, shape[3] + 2 * _STEP]
        found.append(TensorSpec(tuple(shape), spec.dtype, spec.low, spec.high).random(generator, None))
    return tuple(found)
