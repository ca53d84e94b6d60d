"""Slice the parameters and buffers of a model to the kept channels, and update the size fields of its layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from gator.graph.bake import baked_copy, copied_results, needs_baking
from gator.graph.program import MODES, BatchInt, Call
from gator.graph.tensor_identity import memory_of
from gator.graph.trace import named_tensors
from gator.surgery.layers import touched_layers, update_fields_
from gator.surgery.plan import Mask, Plan
from gator.surgery.sizes import Cutting, new_arguments

aten = torch.ops.aten
_SLOW_DENORMALS = (torch.float32, torch.float64, torch.bfloat16)  # their denormals are below 1e-38


def narrowed(tensor: torch.Tensor, axes: list[Mask | None]) -> torch.Tensor:
    """The kept positions of a tensor along every axis, as a new tensor in the same memory format."""
    result = tensor.detach()
    for axis, mask in enumerate(axes):
        if mask is not None:
            index = torch.from_numpy(mask.nonzero()[0]).to(tensor.device)
            result = result.index_select(axis, index)
    if tensor.ndim == 4 and tensor.stride() == _in_channels_last(tensor).stride():
        # Not `contiguous`: with an axis of size 1 it keeps other strides, by which torch chooses another kernel.
        return _in_channels_last(result, tensor.device).copy_(result)
    return result.contiguous()


def _in_channels_last(tensor: torch.Tensor, device: torch.device | str = "meta") -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device, memory_format=torch.channels_last)


def without_denormals_(tensor: torch.Tensor) -> torch.Tensor:
    """Replace denormal numbers by zeros, in place: they are negligible, and slow on many processors.

    float16 is not changed: processors compute with it in single precision, where its denormals are normal numbers.
    """
    if tensor.dtype in _SLOW_DENORMALS:
        tensor.masked_fill_(tensor.abs() < torch.finfo(tensor.dtype).tiny, 0)
    return tensor


@torch.no_grad()
def flush_denormals_(model: nn.Module) -> None:
    """Replace denormals in all parameters and buffers by zeros: weight decay shrinks unused weights until they are denormal."""
    for tensor in (*model.parameters(), *model.buffers()):
        without_denormals_(tensor)


def sliced_copy(model: nn.Module, plan: Plan) -> nn.Module:
    """A copy of the model with only the kept channels. Removed channels and gradients are not copied."""
    if needs_baking(model):
        model = baked_copy(model)
    fresh: dict[str, torch.Tensor] = {}
    memo = copied_results(model)
    names = canonical_names(model)
    for name, tensor in named_tensors(model).items():
        if id(tensor) in memo:
            continue
        axes = plan.attributes.get(names[name])
        if names[name] not in fresh:
            fresh[names[name]] = without_denormals_(tensor.detach().clone() if axes is None else narrowed(tensor, axes))
        data = fresh[names[name]]
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(data, requires_grad=tensor.requires_grad) if is_parameter else data
    copied = copy.deepcopy(model, memo)
    update_layers_(copied, plan)
    return copied


def update_layers_(model: nn.Module, plan: Plan) -> None:
    """Update the size fields of layers whose weights were sliced."""
    names = canonical_names(model)
    touched = [name for name in named_tensors(model) if names[name] in plan.attributes]
    settings = layer_settings(plan)
    for layer in dict.fromkeys([*touched_layers(touched), *settings]):
        update_fields_(model.get_submodule(layer), settings.get(layer, {}))


def canonical_names(model: nn.Module) -> dict[str, str]:
    """For every name of a parameter or buffer, the first name of the same tensor, which is the one that the graph uses."""
    first: dict[Any, str] = {}
    result = {}
    for name, tensor in named_tensors(model).items():
        result[name] = first.setdefault(memory_of(tensor), name)
    return result


def layer_settings(plan: Plan) -> dict[str, dict[str, Any]]:
    """The settings of layers after the cut that weights do not show: groups, and shapes of layers without weights."""
    settings: dict[str, dict[str, Any]] = {}
    for cutting in (Cutting(plan, mode) for mode in MODES):
        for call in cutting.program.calls:
            found = _settings_of(cutting, call)
            if found and call.module:
                settings.setdefault(call.module, {}).update(found)
    return settings


def _settings_of(cutting: Cutting, call: Call) -> dict[str, Any]:
    found = {name: value for name, value in new_arguments(cutting, call).items() if name in _SETTINGS}
    if call.packet in (aten.batch_norm, aten.instance_norm, aten.group_norm):
        shape = cutting.after(call.value_at("input"))
        channels = shape[1] if len(shape) > 1 else shape[0]
        return {} if isinstance(channels, BatchInt) else {**found, "channels": int(channels)}
    return found


_SETTINGS = ("groups", "num_groups", "normalized_shape")
