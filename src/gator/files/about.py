"""`About`: what belongs to a network besides its weights, as it is kept in network files, exported files and run folders.

Every part may be missing; a command that needs one says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gator.errors import DataError
from gator.files.preprocessing import Preprocessing
from gator.graph.json_fields import counts, strings
from gator.graph.json_fields import field as json_field

Figure = int | float


@dataclass(frozen=True)
class About:
    """What belongs to a network: how to build it, how to prepare its inputs, what its outputs mean, and how good it is.

    >>> about = gator.About(network="digits:resnet", input=(1, 8, 8), class_names=tuple("0123456789"))
    >>> gator.save(small, "small.safetensors", about=about)
    >>> small = gator.load("small.safetensors")
    """

    network: str = ""  # the name of the original network, as `gator inspect` takes it; empty: only the caller can build it
    classes: int = 0  # the number of classes it was built with; 0: as many as the name implies
    input: tuple[int, ...] = ()  # the shape of one example, without the batch
    preprocessing: Preprocessing | None = None
    class_names: tuple[str, ...] = ()  # in the order of the outputs
    recipe: str = ""  # of the run that made it, as TOML
    tested_on: str = ""  # the examples that the accuracies are of
    figures: Mapping[str, Figure] = field(default_factory=dict)  # accuracy, macs, params, bytes of this network
    dense: Mapping[str, Figure] = field(default_factory=dict)  # the same of the network before pruning

    @property
    def accuracy(self) -> float | None:
        """In percent."""
        return self.figures.get("accuracy")

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "network": self.network,
            "classes": self.classes,
            "input": list(self.input),
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_data(),
            "class_names": list(self.class_names),
            "recipe": self.recipe,
            "tested_on": self.tested_on,
            "figures": dict(self.figures),
            "dense": dict(self.dense),
        }

    @classmethod
    def from_data(cls, data: Any) -> About:
        """Raises ValueError for data that is not what `to_data` returns."""
        preprocessing = data.get("preprocessing") if isinstance(data, dict) else None
        try:
            prepared = None if preprocessing is None else Preprocessing.from_data(preprocessing)
        except DataError as error:
            raise ValueError(str(error)) from error
        return cls(
            network=json_field(data, "network", str),
            recipe=json_field(data, "recipe", str),
            tested_on=json_field(data, "tested_on", str),
            figures=_figures(data, "figures"),
            dense=_figures(data, "dense"),
            classes=json_field(data, "classes", int),
            input=counts(data, "input", least=1),
            preprocessing=prepared,
            class_names=strings(data, "class_names"),
        )


def _figures(data: Any, name: str) -> dict[str, Figure]:
    found: dict[str, Any] = json_field(data, name, dict)
    for key, value in found.items():
        if type(value) not in (int, float):
            raise ValueError(f"{name}.{key} is a {type(value).__name__}; expected a number")
    return found
