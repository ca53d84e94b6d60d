"""Programs that run at other heights and widths: integers that depend on them become formulas.

As long as height and width grow by multiples of the total stride, every size inside a convolutional network is affine in both,
and a number of pixels is a product of two such sizes. So four recordings (as traced, taller, wider, both) determine the formula
of every integer. A network is bound to its size if the recordings differ in anything else, and the reason says in what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gator.errors import TraceError
from gator.graph.inputs import Inputs, TensorSpec
from gator.graph.program import BatchInt, Call, ImageInt, Program
from gator.graph.record_forward import record
from gator.private_torch import schema_of

HEIGHT, WIDTH = 2, 3  # the axes of an image


class Bound(Exception):
    """The network runs at one size of images only; the text says why."""


def grown(inputs: Inputs, height: int, width: int) -> Inputs:
    """The inputs with so many steps more of height and width."""

    def resized(leaf: TensorSpec) -> TensorSpec:
        if len(leaf.shape) != 4:
            return leaf
        batch, channels, h, w = leaf.shape
        return replace(leaf, shape=(batch, channels, h + height * ImageInt.STEP, w + width * ImageInt.STEP))

    return replace(inputs, leaves=tuple(resized(leaf) if isinstance(leaf, TensorSpec) else leaf for leaf in inputs.leaves))


def of_another_size(inputs: Inputs) -> Inputs:
    """The inputs with images of another height and width: smaller ones if there is room, which takes less time."""
    sizes = [
        size for leaf in inputs.leaves if isinstance(leaf, TensorSpec) and len(leaf.shape) == 4 for size in leaf.shape[HEIGHT:]
    ]
    return grown(inputs, -2, -1) if min(sizes) >= 3 * ImageInt.STEP else grown(inputs, 1, 2)


def with_image_sizes(model: nn.Module, inputs: Inputs, has_rule: Callable[[Any], bool], program: Program) -> Program:
    """The program with formulas of height and width. Raises Bound if the network runs at one size only."""
    images = {leaf.shape[HEIGHT:] for leaf in inputs.leaves if isinstance(leaf, TensorSpec) and len(leaf.shape) == 4}
    if len(images) != 1:
        raise Bound("it has no image as input" if not images else "its images have different sizes")
    others = []
    for height, width in ((1, 0), (0, 1), (1, 1)):
        try:
            others.append(record(model, grown(inputs, height, width), has_rule, training=program.training))
        except (TraceError, RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
            raise Bound(f"it does not run on images of another size: {str(error).splitlines()[0]}") from error
    return _merged([program, *others])


def _merged(programs: list[Program]) -> Program:
    first, *others = programs
    if any(len(p.calls) != len(first.calls) or len(p.values) != len(first.values) or p.batch != first.batch for p in others):
        raise Bound("it makes other calls for images of another size")
    calls = [_merged_call(same) for same in zip(*(program.calls for program in programs), strict=True)]
    for name, tensor in first.constants.items():
        if any(name not in p.constants or not _equal(tensor, p.constants[name]) for p in others):
            value = next(v.id for v in first.values if v.name == name and v.origin == "constant")
            reader = next(call for call in first.calls if any(v == value for _, v in call.tensors()))
            raise Bound(f"a constant depends on the size of the images, in {reader.where()}")
    values = [
        replace(same[0], shape=_merged_argument([value.shape for value in same], "a shape"))
        for same in zip(*(program.values for program in programs), strict=True)
    ]
    return replace(first, calls=tuple(calls), values=tuple(values))


def _merged_call(same: tuple[Call, ...]) -> Call:
    first = same[0]
    where = first.where()
    if any(call.op is not first.op or call.args.keys() != first.args.keys() or call.module != first.module for call in same):
        raise Bound(f"it makes other calls for images of another size, first {where}")
    args = {name: _merged_argument([call.args[name] for call in same], where) for name in first.args}
    sizes = {argument.name for argument in schema_of(first.op).arguments if "int" in str(argument.type).lower()}
    for name, arg in args.items():
        if name not in sizes and _depends(arg):
            raise Bound(f"a number that is computed with depends on the size of the images, in {where}")
    return replace(first, args=args)


def _depends(arg: Any) -> bool:
    return isinstance(arg, ImageInt) or (isinstance(arg, (list, tuple)) and any(_depends(item) for item in arg))


def _merged_argument(same: list[Any], where: str) -> Any:
    first = same[0]
    if all(type(arg) is type(first) for arg in same):
        if isinstance(first, BatchInt):
            slope, offset = _formula([arg.slope for arg in same]), _formula([arg.offset for arg in same])
            return BatchInt(slope, offset, (int(first) - first.offset) // first.slope if first.slope else 0)
        if isinstance(first, (list, tuple)) and all(len(arg) == len(first) for arg in same):
            return type(first)(_merged_argument(list(items), where) for items in zip(*same, strict=True))
        if type(first) is int:
            return _formula(same)
        if all(arg == first for arg in same):
            return first
    raise Bound(f"an argument that is no size depends on the size of the images, in {where}")


def _formula(values: list[int]) -> int:
    at, taller, wider, both = (int(value) for value in values)
    growth = (taller - at, wider - at, both - taller - wider + at)
    return ImageInt(at, growth) if any(growth) else at


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)
