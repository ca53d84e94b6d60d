"""Record the forward pass of a model as a Program, from shapes alone: no data is computed, and the model is not changed.

The pass is recorded at two batch sizes. Sizes that differ between the two become formulas in the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gator.errors import TraceError
from gator.graph.assumptions import Draw, with_more_layers
from gator.graph.dispatch_mode import Assignments, Names, Recorder
from gator.graph.experts import experts_batched
from gator.graph.global_state import autograd_functions_counted, exporting, fastpath_disabled
from gator.graph.inputs import Inputs, TensorSpec
from gator.graph.outputs import LEAF_TYPES, flattened
from gator.graph.program import MODES, BatchInt, Program, Ref, same_calls, same_tensors
from gator.graph.random_state import RandomState
from gator.graph.recorded_tensor import RecordedTensor
from gator.graph.temporary_mode import modes_set
from gator.private_torch import pytree, views_untracked


def record(
    model: nn.Module, inputs: Inputs, has_rule: Callable[[Any], bool], *, training: bool, names: Names | None = None
) -> Program:
    """The program of `model` in train or eval mode. It runs at any batch size if the model does."""
    names = names or Names(model)
    if inputs.batch is None:
        return record_once(model, inputs, has_rule, training=training, batch=None, fold=True, names=names)
    first = max(inputs.batch, 2)
    for fold in (True, False):
        try:
            one = record_once(model, inputs, has_rule, training=training, batch=first, fold=fold, names=names)
            two = record_once(model, inputs, has_rule, training=training, batch=first + _STEP, fold=fold, names=names)
            return _merge(one, two, first)
        except (TraceError, _Differs, RuntimeError, ValueError, AssertionError, IndexError, TypeError):
            continue
    # The network does not run at another batch size: record it at that of the example inputs.
    return record_once(model, inputs, has_rule, training=training, batch=inputs.batch, fold=True, names=names)


def runs_at_other_sizes(model: nn.Module, inputs: Inputs, has_rule: Callable[[Any], bool], program: Program) -> bool:
    """Whether the model makes the same calls for images, or sequences, of twice the size."""
    for axes in ((2, 3, 4), (1,)):
        larger = _resized(inputs, lambda size: 2 * size, axes)
        same = None if larger == inputs else _makes_same_calls(model, larger, has_rule, program)
        if same is not None:
            return same
    return False


def with_small_images(model: nn.Module, inputs: Inputs, has_rule: Callable[[Any], bool], program: Program) -> Inputs:
    """The inputs with images of about a quarter of the height and width, if the model makes the same calls for them."""
    sizes = [size for leaf in inputs.leaves if isinstance(leaf, TensorSpec) for size in leaf.shape[2:]]
    if not sizes or min(sizes) < 2 * _SMALL_IMAGE:
        return inputs
    smaller = _resized(inputs, lambda size: max(_SMALL_IMAGE, -(-size // (4 * 32)) * 32), (2, 3))
    return smaller if _makes_same_calls(model, smaller, has_rule, program) else inputs


def _resized(inputs: Inputs, change: Callable[[int], int], axes: tuple[int, ...]) -> Inputs:
    def resized(spec: TensorSpec) -> TensorSpec:
        return replace(spec, shape=tuple(change(size) if axis in axes else size for axis, size in enumerate(spec.shape)))

    return replace(inputs, leaves=tuple(resized(leaf) if isinstance(leaf, TensorSpec) else leaf for leaf in inputs.leaves))


def _makes_same_calls(model: nn.Module, inputs: Inputs, has_rule: Callable[[Any], bool], program: Program) -> bool | None:
    """Whether the model makes the calls of `program` for these inputs too; None if it cannot run on them."""
    batch = program.batch or inputs.batch
    try:
        other = record_once(model, inputs, has_rule, training=program.training, batch=batch, fold=program.folded)
    except (TraceError, RuntimeError, ValueError, AssertionError, IndexError, TypeError):
        return None
    same_constants = all(
        name in other.constants and torch.equal(tensor, other.constants[name]) for name, tensor in program.constants.items()
    )
    return same_constants and same_calls(program, other)


def record_once(
    model: nn.Module,
    inputs: Inputs,
    has_rule: Callable[[Any], bool],
    *,
    training: bool,
    batch: int | None,
    fold: bool,
    names: Names | None = None,
) -> Program:
    """The program at one batch size; `fold` computes integer tensors that depend on constants alone instead of recording.

    If random draws decide what the network computes, it is the program that leaves no layer out.
    """
    names = names or Names(model)
    high = _recorded(model, inputs, has_rule, training, batch, fold, names, "highest")
    if not high.decided_by_draws:
        return high
    return with_more_layers(high, _recorded(model, inputs, has_rule, training, batch, fold, names, "lowest"))


def _recorded(
    model: nn.Module,
    inputs: Inputs,
    has_rule: Callable[[Any], bool],
    training: bool,
    batch: int | None,
    fold: bool,
    names: Names,
    draw: Draw,
) -> Program:
    recorder = Recorder(names, has_rule, fold=fold, draw=draw)
    leaves: list[Any] = []
    for position, leaf in enumerate(inputs.leaves):
        if isinstance(leaf, TensorSpec):
            shape = (batch, *leaf.shape[1:]) if batch is not None and inputs.batched(leaf) else leaf.shape
            leaf = recorder.add_input(f"input_{position}", shape, leaf.dtype)
        leaves.append(leaf)
    identifiers = tuple(leaf.value for leaf in leaves if isinstance(leaf, RecordedTensor))
    _check_arguments(leaves)
    args, kwargs = pytree.tree_unflatten(leaves, inputs.structure)
    random, drawn_elsewhere = RandomState(), False
    try:
        # In inference mode composite operators (conv2d, batch_norm, attention) are dispatched without being decomposed.
        # Parameters are ordinary tensors, whose views would still be tracked, so that step is disabled too.
        with (
            modes_set(model, training),
            experts_batched(model),
            torch.inference_mode(),
            torch.enable_grad(),
            views_untracked(),
            fastpath_disabled(),
            exporting(),
            recorder,
            Assignments(recorder),
            recorder.functions,
        ):
            buffers = dict(model.named_buffers())
            with autograd_functions_counted():
                result = model(*args, **kwargs)
            drawn_elsewhere = random.drawn_outside_torch()
            for name, buffer in model.named_buffers():
                if isinstance(buffer, RecordedTensor) and name in buffers:
                    buffers[name].copy_(buffer)  # recorded: forward replaced this buffer by a new tensor
        flat = flattened(result)
        outputs = [
            Ref(recorder.meta_and_value(x)[1]) if isinstance(x, torch.Tensor) else x
            for x in (leaf if chosen else None for leaf, chosen in zip(flat.leaves, flat.chosen(inputs.outputs), strict=True))
        ]
    except TraceError:
        raise
    except Exception as error:
        raise TraceError(_failure_message(recorder, error)) from error
    finally:
        random.restore()
    # Cloned here, outside inference mode: inference tensors cannot be used in training.
    constants = {name: tensor.clone() for name, tensor in recorder.constants.items()}
    places = recorder.functions.found
    values = tuple(recorder.values)
    calls = tuple(replace(call, place=places.get(call.index)) for call in recorder.calls)
    return Program(
        training=training,
        batch=None,
        values=values,
        calls=calls,
        inputs=identifiers,
        outputs=(outputs, flat.structure),
        constants=constants,
        folded=fold,
        output_names=flat.names,
        notes=tuple(_notes(recorder, training, drawn_elsewhere)),
        assigned=recorder.assigned,
        decided_by_draws=tuple(recorder.decisions["draw"]),
    )


def _notes(recorder: Recorder, training: bool, drawn_elsewhere: bool) -> Iterator[str]:
    checks = recorder.decisions["finite"]
    if checks:
        yield f"activations are taken to be finite where the network checks it, at {checks[0]}"
    if drawn_elsewhere:
        yield (
            f"in {MODES[0 if training else 1]} mode the network draws random numbers with Python's random or with NumPy: "
            "a cut network in graph form repeats what was drawn when it was traced"
        )


_SMALL_IMAGE = 64  # pixels: after a total stride of 32 a 3x3 kernel still uses all its weights


def _check_arguments(leaves: list[Any]) -> None:
    """Raise for objects that torch cannot flatten: tensors inside them would be lost silently."""
    for leaf in leaves:
        if not isinstance(leaf, LEAF_TYPES):
            kind = type(leaf)
            raise TraceError(
                f"the network is given a {kind.__module__}.{kind.__qualname__}, which torch cannot flatten\n"
                "  Use tensors in tuples, lists or dicts, or register the class with torch.utils._pytree."
            )


def _failure_message(recorder: Recorder, error: Exception) -> str:
    last = recorder.calls[-1].where() if recorder.calls else "the start of forward"
    return (
        "the model could not be recorded with these example inputs\n"
        f"  after {last}\n"
        f"  {type(error).__name__}: {error}\n"
        "  Check that model(*example_inputs) runs. If it does, the network does something at this point that cannot be "
        "recorded from shapes alone."
    )


class _Differs(Exception):
    """Two recordings at different batch sizes are not the same program."""


_STEP = 7  # a prime: then a size that is not a multiple of the batch (half of it, for example) has a fractional slope


def _affine(one: int, two: int, batch: int) -> BatchInt:
    slope, rest = divmod(two - one, _STEP)
    offset = one - slope * batch
    if rest or slope < 1 or offset < 0:
        raise _Differs
    return BatchInt(slope, offset, batch)


def _merge(one: Program, two: Program, batch: int) -> Program:
    """One program from two that were recorded at different batch sizes: integers that differ become BatchInt."""
    if len(one.calls) != len(two.calls) or not same_tensors(one, two):
        raise _Differs

    def merge(a: Any, b: Any) -> Any:
        if isinstance(a, bool) or isinstance(b, bool):
            if a is not b:
                raise _Differs
            return a
        if isinstance(a, int) and isinstance(b, int):
            return a if a == b else _affine(a, b, batch)
        if type(a) is not type(b):
            raise _Differs
        if isinstance(a, (list, tuple)):
            if len(a) != len(b):
                raise _Differs
            return type(a)(merge(x, y) for x, y in zip(a, b, strict=True))
        if a != b:
            raise _Differs
        return a

    for name, tensor in one.constants.items():
        other = two.constants.get(name)
        if other is None or other.shape != tensor.shape or not torch.equal(other, tensor):
            raise _Differs
    calls = []
    for a, b in zip(one.calls, two.calls, strict=True):
        if a.op is not b.op or a.args.keys() != b.args.keys():
            raise _Differs
        args = {name: merge(arg, b.args[name]) for name, arg in a.args.items()}
        calls.append(replace(a, args=args))
    values = [replace(a, shape=merge(a.shape, b.shape)) for a, b in zip(one.values, two.values, strict=True)]
    merge(one.outputs[0], two.outputs[0])
    return replace(one, batch=batch, values=tuple(values), calls=tuple(calls))
