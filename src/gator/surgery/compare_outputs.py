"""Compare the outputs of two networks on random inputs: in the precision of the model first, and in float64 if in doubt."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from gator.graph.inputs import Inputs
from gator.graph.outputs import Flat, flattened
from gator.graph.program import Program
from gator.graph.temporary_mode import modes_set
from gator.graph.tensor_identity import without_data
from gator.private_torch import pytree
from gator.surgery.precision import InFloat64, lowest_precision

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def difference(one: Any, other: Any, outputs: Sequence[str] = ()) -> float:
    """The largest difference between two results, relative to the larger of their largest values; inf if the shapes differ.

    With `outputs`, only the outputs with these names are compared.
    """
    left, right = flattened(one), flattened(other)
    if not outputs and left.structure != right.structure:
        return float("inf")
    here, there = (_tensors(flat, outputs) for flat in (left, right))
    if here.keys() != there.keys():
        return float("inf")
    worst = 0.0
    for name, a in here.items():
        b = there[name]
        if a.shape != b.shape:
            return float("inf")
        if a.numel() == 0 or without_data(a):  # on the meta device only shapes can be compared
            continue
        if not a.dtype.is_floating_point:
            worst = max(worst, float((a != b).any()))
            continue
        special = ~torch.isfinite(a)
        if not torch.equal(special, ~torch.isfinite(b)) or not torch.equal(a[special].nan_to_num(7), b[special].nan_to_num(7)):
            return float("inf")  # infinities and NaN must be at the same positions
        a, b = a[~special], b[~special]
        if a.numel():
            scale = max(float(a.abs().max()), float(b.abs().max()))
            gap = float((a - b).abs().max())
            worst = max(worst, gap / scale if scale > 0 else gap)
    return worst


def _tensors(flat: Flat, outputs: Sequence[str]) -> dict[str, torch.Tensor]:
    leaves = zip(flat.names, flat.leaves, flat.chosen(outputs), strict=True)
    return {name: leaf for name, leaf, chosen in leaves if chosen and isinstance(leaf, torch.Tensor)}


def run(model: nn.Module, inputs: Inputs, *, dtype: torch.dtype | None = None, batch: int | None = None, seed: int = 0) -> Any:
    """The output in eval mode for random inputs; the modes and buffers of the model are restored."""
    reference = next((t for t in [*model.parameters(), *model.buffers()] if t.dtype.is_floating_point), None)
    args, kwargs = inputs.random(batch=batch, seed=seed)

    def fit(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and reference is not None:
            x = x.to(reference.device)
            return x.to(dtype or reference.dtype) if x.dtype.is_floating_point else x
        return x

    args, kwargs = pytree.tree_map(fit, (args, kwargs))
    devices = [reference.device] if reference is not None and reference.is_cuda else []
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        # The same random numbers for every network; the random state of the user does not change.
        with modes_set(model, False), torch.no_grad(), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            return model(*args, **kwargs)
    finally:
        for buffer, before in buffers:
            if not without_data(buffer) and not torch.equal(buffer, before):
                buffer.copy_(before)


def agree(
    model: nn.Module, candidate: nn.Module, inputs: Inputs, program: Program, masked: Callable[[nn.Module], Any]
) -> tuple[bool, float]:
    """Whether `candidate` computes what `model` computes inside `masked(model)`, and the relative difference.

    The tolerance is that of the lowest precision in `program`, the recording of `model`.
    """
    weights = next((p.dtype for p in model.parameters() if p.dtype.is_floating_point), torch.float32)
    tolerance = TOLERANCE.get(lowest_precision(program, weights), 1e-5)
    # Two examples: with one, differences to the batch mean are zero, and squeeze() removes the batch axis.
    batch = 2 if inputs.batch is not None else None
    with masked(model):
        expected = run(model, inputs, batch=batch)
    found = difference(expected, run(candidate, inputs, batch=batch), inputs.outputs)
    if found <= tolerance:
        return True, found
    if tolerance == TOLERANCE[torch.float64] or found == float("inf"):
        return False, found
    # Float64 throughout shows whether this is rounding or a real difference.
    exact = copy.deepcopy(model).double()
    try:
        with masked(exact), InFloat64():  # type: ignore[no-untyped-call]
            expected = run(exact, inputs, batch=batch)
        with InFloat64():  # type: ignore[no-untyped-call]
            in_float64 = difference(expected, run(copy.deepcopy(candidate).double(), inputs, batch=batch), inputs.outputs)
    except (RuntimeError, TypeError):  # an operator that exists in lower precision only
        return found <= 10 * tolerance, found
    return in_float64 <= TOLERANCE[torch.float64], in_float64
