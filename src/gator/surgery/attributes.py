"""Sizes that a user's module holds as plain attributes (`self.num_heads`, the `c` of a split) and that a cut changes.

Nothing says what an attribute means. If a module reshapes or splits something into a width that a cut changes, and an integer
of the module is that width, in all modules of its class that run, the integer is taken to be it. Whether that is right is
decided as for any cut: the class has to compute what the masked network computes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from gator.graph.program import MODES, BatchInt
from gator.surgery.plan import Plan
from gator.surgery.sizes import Cutting

aten = torch.ops.aten
_WITH_SIZES = (
    aten.view, aten.reshape, aten._unsafe_view, aten.unflatten, aten.expand, aten.repeat, aten.split, aten.split_with_sizes,
    aten.chunk, aten.narrow, aten.slice,
)  # fmt: skip


def size_attributes(model: nn.Module, plan: Plan) -> dict[str, int]:
    """The attributes of the model's modules that are sizes, by dotted name, with their values after the cut."""
    found: dict[str, int] = {}
    refuted: set[tuple[type, str]] = set()
    for name, sizes in _sizes_by_module(plan).items():
        module = model.get_submodule(name)
        if type(module).__module__.startswith("torch."):
            continue
        for attribute, value in vars(module).items():
            if type(value) is not int:
                continue
            after = sizes.get(value, set())
            if len(after) == 1:
                found[f"{name}.{attribute}".lstrip(".")] = next(iter(after))
            else:
                refuted.add((type(module), attribute))
    return {
        name: value
        for name, value in found.items()
        if (type(model.get_submodule(name.rpartition(".")[0])), name.rpartition(".")[2]) not in refuted
        and value != get_attribute(model, name)
    }


def _sizes_by_module(plan: Plan) -> dict[str, dict[int, set[int]]]:
    """For every module, the sizes that its reshapes and splits give prunable axes, and those sizes after the cut."""
    found: dict[str, dict[int, set[int]]] = {}
    for cutting in (Cutting(plan, mode) for mode in MODES):
        for call in cutting.program.calls:
            if call.packet not in _WITH_SIZES:
                continue
            for value in call.outputs:
                axes = () if value is None else cutting.axes(value)
                for axis, labels in enumerate(axes):
                    size = cutting.before(value or 0)[axis]
                    if labels is not None and not isinstance(size, BatchInt):
                        sizes = found.setdefault(call.module, {}).setdefault(int(size), set())
                        sizes.add(int(cutting.after(value or 0)[axis]))
    return found


def get_attribute(model: nn.Module, name: str) -> int:
    owner, _, attribute = name.rpartition(".")
    value: int = getattr(model.get_submodule(owner), attribute)
    return value


def set_attributes_(model: nn.Module, attributes: Mapping[str, int]) -> None:
    for name, value in attributes.items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, value)
