"""The networks of a run: built from the recipe, read from its folder, and placed on the device in the layout they train in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from gator.files.save import read_packed, unpacked
from gator.surgery.fold import folded
from gator.training.recipe import Recipe
from gator.training.weights import with_weights
from gator.zoo.models import build


class Networks:
    """Makes networks for one run. `recipe` is the recipe of the run with the layout decided."""

    def __init__(self, recipe: Recipe, example: Tensor, classes: int) -> None:
        self._example, self._classes = example, classes
        self.recipe = recipe
        if recipe.run.channels_last == "auto":
            layout = any(isinstance(module, nn.Conv2d) for module in self.fresh().modules())
            self.recipe = replace(recipe, run=replace(recipe.run, channels_last=layout))

    def built(self) -> nn.Module:
        """A new instance with the weights that the recipe names."""
        settings = self.recipe.model
        source, _, which = settings.weights.partition(":")
        if source == "pretrained":
            return self.placed(self._instance(which or "DEFAULT"))
        model = self._instance()
        return self.placed(with_weights(model, Path(settings.weights)) if settings.weights else model)

    def fresh(self) -> nn.Module:
        """A new instance with random weights, which takes no random numbers from the run."""
        with torch.random.fork_rng():
            return self._instance()

    def _instance(self, pretrained: str = "") -> nn.Module:
        name = self.recipe.model.name
        return build(name, example_inputs=self._example, classes=self._classes, pretrained=pretrained).model

    def placed(self, network: nn.Module) -> nn.Module:
        network = network.to(self._example.device)
        return network.to(memory_format=torch.channels_last) if self.recipe.run.in_channels_last else network  # type: ignore[call-overload]

    def from_file(self, path: Path) -> nn.Module:
        """A network that `gator.save` wrote, in eval mode."""
        tensors, content = read_packed(path)
        return self.placed(unpacked(tensors, content, self.fresh(), path)).eval()

    def teacher(self, path: Path) -> nn.Module:
        """The dense network for distillation: in eval mode, without gradients, batch norms folded into convolutions."""
        dense = self.from_file(path)
        return self.placed(folded(dense, torch.zeros_like(self._example))).requires_grad_(False)
