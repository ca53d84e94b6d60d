"""Sizes that a user's module holds as plain attributes (`self.num_heads`, the `c` of a split) and that a cut changes.

Nothing says what an attribute means. An integer is taken to be the size of an axis of a weight of the module, or else a size
that the module reshapes or splits something into, if it is that size in all modules of its class that run. Whether this is
right is decided as for any cut: the class has to compute what the masked network computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gator.graph.program import MODES, BatchInt
from gator.private_torch import parameters_of
from gator.surgery.plan import Plan
from gator.surgery.sizes import Cutting

aten = torch.ops.aten
_WITH_SIZES = (
    aten.view, aten.reshape, aten._unsafe_view, aten.unflatten, aten.expand, aten.repeat, aten.split, aten.split_with_sizes,
    aten.chunk, aten.narrow, aten.slice,
)  # fmt: skip
Sizes = dict[Any, tuple[int, int]]  # what has a size -> the size before and after the cut


def size_attributes(model: nn.Module, plan: Plan) -> list[dict[str, int]]:
    """Attributes of the model's modules that may be sizes and change, by dotted name, with their values after the cut.

    First those that are sizes of a reshape or a split, then also those that are sizes of weights, which more numbers are by
    chance (a number of classes).
    """
    reshapes = _reshapes(plan)
    by_class: dict[type, list[str]] = {}
    for name, module in model.named_modules():
        if not type(module).__module__.startswith("torch."):
            by_class.setdefault(type(module), []).append(name)
    of_reshapes: dict[str, int] = {}
    of_weights: dict[str, int] = {}
    for names in by_class.values():
        of_reshapes |= _explained(model, {name: reshapes[name] for name in names if name in reshapes})
        weights = {name: _weights(model.get_submodule(name), name, plan) for name in names}
        of_weights |= _explained(model, {name: sizes for name, sizes in weights.items() if sizes})
    first, both = (
        {name: value for name, value in found.items() if value != get_attribute(model, name)}
        for found in (of_reshapes, of_reshapes | of_weights)
    )
    return [first] if first == both else [first, both]


def _explained(model: nn.Module, sizes: Mapping[str, Sizes]) -> dict[str, int]:
    """The attributes of modules of one class that are a size in all of them, with the size after the cut."""
    found: dict[str, int] = {}
    modules = {name: model.get_submodule(name) for name in sizes}
    attributes = {key for module in modules.values() for key, value in vars(module).items() if type(value) is int}
    for attribute in attributes:
        values = {name: vars(module).get(attribute) for name, module in modules.items()}
        matching = {name: {key for key, (size, _) in sizes[name].items() if size == values[name]} for name in values}
        shared = set.intersection(*matching.values())
        for name in values:
            # What is the same size in every module, or else any one that this module has.
            after = {sizes[name][key][1] for key in shared or matching[name]}
            changed = after - {values[name]}
            if not after or len(changed) > 1:
                break
            found[f"{name}.{attribute}".lstrip(".")] = next(iter(changed or after))
        else:
            continue
        found = {key: value for key, value in found.items() if key.rpartition(".")[2] != attribute}
    return found


def _weights(module: nn.Module, name: str, plan: Plan) -> Sizes:
    """The axes of a module's own parameters."""
    found: Sizes = {}
    for key, parameter in parameters_of(module).items():
        if parameter is not None:
            masks = plan.attributes.get(f"{name}.{key}".lstrip("."), [None] * parameter.ndim)
            for axis, (size, mask) in enumerate(zip(parameter.shape, masks, strict=True)):
                found[key, axis] = (size, size if mask is None else int(mask.sum()))
    return found


def _reshapes(plan: Plan) -> dict[str, Sizes]:
    """For every module, the sizes that its reshapes and splits give prunable axes."""
    found: dict[str, Sizes] = {}
    for cutting in (Cutting(plan, mode) for mode in MODES):
        for call in cutting.program.calls:
            if call.packet not in _WITH_SIZES:
                continue
            for value in (v for v in call.outputs if v is not None):
                for axis, labels in enumerate(cutting.axes(value)):
                    size = cutting.before(value)[axis]
                    if labels is not None and not isinstance(size, BatchInt):
                        after = int(cutting.after(value)[axis])
                        found.setdefault(call.module, {})[cutting.mode, value, axis] = (int(size), after)
    return found


def get_attribute(model: nn.Module, name: str) -> int:
    owner, _, attribute = name.rpartition(".")
    value: int = getattr(model.get_submodule(owner), attribute)
    return value


def set_attributes_(model: nn.Module, attributes: Mapping[str, int]) -> None:
    for name, value in attributes.items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, value)
