"""Networks by name, with example inputs of the right shape and random weights.

`cifar:resnet56`, `torchvision:resnet50`, `timm:levit_128s`, `hf:path/to/config`, `path/to/file.py:factory`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gator.errors import ModelNameError
from gator.extras import optional_import
from gator.zoo.by_name import unknown
from gator.zoo.cifar import DEPTHS, CifarResNet
from gator.zoo.digits import DigitsResNet
from gator.zoo.user_file import call, function_in, is_file


@dataclass(frozen=True)
class Network:
    """A network, its name, and example inputs."""

    name: str
    model: nn.Module
    example_inputs: Any


def build(name: str, *, example_inputs: Any = None, classes: int = 0, pretrained: str = "") -> Network:
    """Build a network by its name, with random weights.

    name: "cifar:resnet20" (32, 44, 56, 110), "digits:resnet", "torchvision:NAME", "timm:NAME", "hf:FOLDER" with a config.json,
    or path/to/file.py:factory, a function without arguments that returns a module or (module, example inputs).
    example_inputs: replaces those that the name implies; needed if a factory returns only a module.
    classes: the number of classes, for networks that leave it open; 0 is the number the name implies.
    pretrained: published weights of torchvision or timm: "DEFAULT", or the name of the weights.

    Returns a `Network` with `model` and `example_inputs`. Raises `gator.ModelNameError` if the name is unknown or the network
    cannot be built, and `gator.MissingExtraError` if the library it comes from is not installed.

    >>> network = zoo.build("cifar:resnet20")
    >>> network.model(network.example_inputs).shape
    torch.Size([1, 10])
    """
    source, _, rest = name.partition(":")
    if is_file(name):
        model, inputs = _from_file(name)
    elif source in _SOURCES and rest:
        model, inputs = _SOURCES[source](rest, classes, pretrained)
    else:
        known = ", ".join(f"{key}:NAME" for key in _SOURCES)
        raise ModelNameError(f"unknown network {name!r}; expected {known} or path/to/file.py:factory")
    if pretrained and source not in _PUBLISHED:
        raise ModelNameError(f"{name} has no published weights; give a file of weights instead")
    inputs = inputs if example_inputs is None else example_inputs
    if inputs is None:
        raise ModelNameError(
            f"{name} returns a model without example inputs; return (model, example_inputs) from the factory, or pass a shape "
            "(--input 1,3,224,224)"
        )
    return Network(name, model, inputs)


def _cifar(name: str, classes: int, _: str) -> tuple[nn.Module, Any]:
    names = {f"resnet{depth}": depth for depth in DEPTHS}
    if name not in names:
        raise unknown("cifar", name, list(names), ModelNameError)
    return CifarResNet(names[name], classes or 10), torch.zeros(1, 3, 32, 32)


def _digits(name: str, classes: int, _: str) -> tuple[nn.Module, Any]:
    if name != "resnet":
        raise unknown("digits", name, ["resnet"], ModelNameError)
    return DigitsResNet(classes=classes or 10), torch.zeros(1, 1, 8, 8)


_TORCHVISION_INPUTS = {"inception_v3": (3, 299, 299), "r3d_18": (3, 8, 112, 112), "mvit_v2_s": (3, 16, 224, 224)}
_TORCHVISION_ARGUMENTS: dict[str, dict[str, Any]] = {
    "googlenet": {"init_weights": False},
    "inception_v3": {"init_weights": False},
    "fcn_resnet50": {"weights_backbone": None},
    "deeplabv3_mobilenet_v3_large": {"weights_backbone": None},
}


def _torchvision(name: str, classes: int, pretrained: str) -> tuple[nn.Module, Any]:
    models = optional_import("torchvision", extra="zoo", purpose="a network of torchvision").models
    if name not in models.list_models():
        raise unknown("torchvision", name, models.list_models(), ModelNameError)
    arguments = _TORCHVISION_ARGUMENTS.get(name, {}) | ({"num_classes": classes} if classes else {})
    try:
        if pretrained and classes not in (0, len(models.get_model_weights(name)[pretrained].meta["categories"])):
            model = _with_new_head(models, name, pretrained, arguments)
        else:
            model = models.get_model(name, weights=pretrained or None, **arguments)
    except (KeyError, ValueError, OSError) as error:
        raise ModelNameError(f"torchvision:{name} cannot be built with weights {pretrained!r}: {error}") from error
    return model, torch.zeros(1, *_TORCHVISION_INPUTS.get(name, (3, 224, 224)))


def _with_new_head(models: Any, name: str, pretrained: str, arguments: dict[str, Any]) -> nn.Module:
    """A network for another number of classes: published weights, except for the layers whose shape depends on that number."""
    published = models.get_model_weights(name)[pretrained].get_state_dict(progress=False, check_hash=True)
    model: nn.Module = models.get_model(name, weights=None, **arguments)
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items()}
    fitting = {key: tensor for key, tensor in published.items() if shapes.get(key) == tensor.shape}
    if not fitting:
        raise ValueError("none of the published weights fits")
    model.load_state_dict(fitting, strict=False)
    return model


def _timm(name: str, classes: int, pretrained: str) -> tuple[nn.Module, Any]:
    timm = optional_import("timm", extra="zoo", purpose="a network of timm")
    if not timm.is_model(name):
        raise unknown("timm", name, timm.list_models(), ModelNameError)
    tagged = f"{name}.{pretrained}" if pretrained not in ("", "DEFAULT") else name
    try:
        model = timm.create_model(tagged, pretrained=bool(pretrained), **({"num_classes": classes} if classes else {}))
    except (RuntimeError, OSError) as error:
        raise ModelNameError(f"timm:{name} cannot be built with weights {pretrained!r}: {error}") from error
    return model, torch.zeros(1, *model.pretrained_cfg.get("input_size", (3, 224, 224)))


def _hugging_face(name: str, classes: int, _: str) -> tuple[nn.Module, Any]:
    """The architecture that a config.json names (`name` is the file or its folder), with random weights."""
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ModelNameError(f"hf:{name}: there is no config.json at {path}; save one with config.save_pretrained(folder)")
    transformers = optional_import("transformers", extra="hf", purpose="a network of transformers")
    config = transformers.AutoConfig.from_pretrained(path.parent)
    if classes:
        config.num_labels = classes
    wanted = json.loads(path.read_text()).get("architectures") or []
    kind = getattr(transformers, wanted[0], None) if wanted else None
    model = kind(config) if kind else transformers.AutoModel.from_config(config)
    if getattr(config, "use_cache", False):
        model.config.use_cache = False  # the cache of keys and values would be one more output of the network
    if model.main_input_name == "pixel_values":
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        return model, {"pixel_values": torch.zeros(1, config.num_channels, size, size)}
    length = min(16, getattr(config, "max_position_embeddings", 16))
    return model, {"input_ids": torch.arange(length).remainder(config.vocab_size).reshape(1, -1)}


def _from_file(name: str) -> tuple[nn.Module, Any]:
    make = function_in(name, ModelNameError)
    made = call(name, make, {}, ModelNameError, "The factory is called without arguments.")
    model, inputs = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, nn.Module):
        raise ModelNameError(f"{name} returned {type(model).__name__}; expected a torch.nn.Module or (module, example inputs)")
    return model, inputs


_PUBLISHED = ("torchvision", "timm")
_SOURCES: dict[str, Callable[[str, int, str], tuple[nn.Module, Any]]] = {
    "cifar": _cifar,
    "digits": _digits,
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _hugging_face,
}
