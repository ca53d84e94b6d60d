"""Layers that stay layers in a graph (`LEAVES`), and how their fields are updated after slicing (`update_fields_`).

Both are tables keyed by the class of the module. A subclass counts as a leaf only if it does not override forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gator.graph.program import Call, Program, Ref
from gator.private_torch import Conv, NormBase

aten = torch.ops.aten


@dataclass(frozen=True)
class Leaf:
    """A module class whose forward is a single operator on its own parameters."""

    kind: type[nn.Module]
    packets: tuple[Any, ...]
    data: str  # the operator's argument that is the module's input
    methods: tuple[str, ...] = ("forward",)  # a subclass that overrides one of these is not this leaf


_CONVS = ((nn.Conv1d, aten.conv1d), (nn.Conv2d, aten.conv2d), (nn.Conv3d, aten.conv3d))
_TRANSPOSED = (
    (nn.ConvTranspose1d, aten.conv_transpose1d),
    (nn.ConvTranspose2d, aten.conv_transpose2d),
    (nn.ConvTranspose3d, aten.conv_transpose3d),
)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_DROPOUTS = ((nn.Dropout, aten.dropout), (nn.Dropout1d, aten.feature_dropout), (nn.Dropout2d, aten.feature_dropout),
             (nn.Dropout3d, aten.feature_dropout), (nn.AlphaDropout, aten.alpha_dropout))  # fmt: skip

LEAVES: tuple[Leaf, ...] = (
    *(Leaf(kind, (packet,), "input", ("forward", "_conv_forward")) for kind, packet in _CONVS),
    *(Leaf(kind, (packet,), "input") for kind, packet in _TRANSPOSED),
    Leaf(nn.Linear, (aten.linear,), "input"),
    *(Leaf(kind, (aten.batch_norm,), "input") for kind in _BATCH_NORMS),
    *(Leaf(kind, (aten.instance_norm,), "input") for kind in _INSTANCE_NORMS),
    Leaf(nn.LayerNorm, (aten.layer_norm,), "input"),
    Leaf(nn.RMSNorm, (aten.rms_norm,), "input"),
    Leaf(nn.GroupNorm, (aten.group_norm,), "input"),
    Leaf(nn.Embedding, (aten.embedding,), "indices"),
    Leaf(nn.PReLU, (aten.prelu,), "self"),
    *(Leaf(kind, (packet,), "input") for kind, packet in _DROPOUTS),
)


def leaves_of(model: nn.Module, program: Program, canonical: Mapping[str, str]) -> dict[str, Leaf]:
    """The modules of a program that stay modules: those in which nothing ran but the single operator of their forward.

    If something else runs inside a module (a circular pad, a hook that changes the result), it was recorded too, and calling
    the module would run it again. Then its operators are written one by one.
    """
    found: dict[str, Leaf | None] = {}
    for call in program.calls:
        if call.mutates is None or program.values[call.mutates].origin != "attribute":
            leaf = _leaf_of(model, call, program, canonical)
            found[call.module] = leaf if found.get(call.module, leaf) is leaf else None
    return {name: leaf for name, leaf in found.items() if leaf is not None}


def _leaf_of(model: nn.Module, call: Call, program: Program, canonical: Mapping[str, str]) -> Leaf | None:
    """The leaf whose forward is this call; None if there is none."""
    if not call.module:
        return None
    module = model.get_submodule(call.module)
    for leaf in LEAVES:
        if call.packet in leaf.packets and isinstance(module, leaf.kind):
            if any(getattr(type(module), name) is not getattr(leaf.kind, name) for name in leaf.methods):
                return None
            return leaf if _own_parameters(call, program, canonical) and _own_settings(module, call) else None
    return None


def _own_parameters(call: Call, program: Program, canonical: Mapping[str, str]) -> bool:
    """Whether the call uses the parameters of the module: a forward may call an operator with other weights."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        arg = call.args.get(name)
        own = canonical.get(f"{call.module}.{name}")
        if isinstance(arg, Ref):
            value = program.values[arg.id]
            # A weight that a hook computes is not a parameter, so it has no other name.
            if value.origin != "attribute" or value.name != (own or f"{call.module}.{name}"):
                return False
        elif own is not None and name in ("weight", "bias"):
            return False
    return True


def _own_settings(module: nn.Module, call: Call) -> bool:
    """Whether the call has the settings of the module: a transposed convolution may be called with another output size."""
    if "output_padding" not in call.args:
        return True
    given, own = call.args["output_padding"], module.output_padding
    return list(given) == list(own)  # type: ignore[arg-type]


def _conv(module: Any, settings: Mapping[str, Any]) -> None:
    module.groups = settings.get("groups", module.groups)
    one, two = module.weight.shape[:2]
    if module.transposed:
        module.in_channels, module.out_channels = one, two * module.groups
    else:
        module.in_channels, module.out_channels = two * module.groups, one


def _linear(module: Any, settings: Mapping[str, Any]) -> None:
    module.out_features, module.in_features = module.weight.shape


def _bilinear(module: Any, settings: Mapping[str, Any]) -> None:
    module.out_features, module.in1_features, module.in2_features = module.weight.shape


def _norm(module: Any, settings: Mapping[str, Any]) -> None:
    for tensor in (module.weight, module.running_mean):
        if tensor is not None:
            module.num_features = tensor.shape[0]
    module.num_features = settings.get("channels", module.num_features)


def _layer_norm(module: Any, settings: Mapping[str, Any]) -> None:
    if "normalized_shape" in settings:
        module.normalized_shape = tuple(settings["normalized_shape"])
    elif module.weight is not None:
        module.normalized_shape = tuple(module.weight.shape)


def _group_norm(module: Any, settings: Mapping[str, Any]) -> None:
    module.num_groups = settings.get("num_groups", module.num_groups)
    module.num_channels = settings.get("channels", module.num_channels)


def _embedding(module: Any, settings: Mapping[str, Any]) -> None:
    module.num_embeddings, module.embedding_dim = module.weight.shape


def _prelu(module: Any, settings: Mapping[str, Any]) -> None:
    module.num_parameters = module.weight.shape[0]


def _rnn(module: Any, settings: Mapping[str, Any]) -> None:
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    module.input_size = module.weight_ih_l0.shape[1]
    module.hidden_size = module.weight_ih_l0.shape[0] // gates
    if getattr(module, "proj_size", 0):
        module.proj_size = module.weight_hh_l0.shape[1]


_FIELDS: tuple[tuple[type[nn.Module], Callable[[Any, Mapping[str, Any]], None]], ...] = (
    (Conv, _conv),
    (nn.Linear, _linear),
    (nn.Bilinear, _bilinear),
    (NormBase, _norm),
    (nn.LayerNorm, _layer_norm),
    (nn.RMSNorm, _layer_norm),
    (nn.GroupNorm, _group_norm),
    (nn.Embedding, _embedding),
    (nn.PReLU, _prelu),
    (nn.RNNBase, _rnn),
)


def update_fields_(module: nn.Module, settings: Mapping[str, Any]) -> None:
    """Update the size fields of a layer (in_channels, num_features, ...) after its weights were sliced.

    `settings` are sizes that the weights do not show.
    """
    for kind, update in _FIELDS:
        if isinstance(module, kind):
            update(module, settings)


def touched_layers(names: Sequence[str]) -> list[str]:
    """The modules that own these parameters and buffers."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))
