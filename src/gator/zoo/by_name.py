"""What is asked for by name: suggestions for a wrong name, and the optional package that a name needs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from gator.errors import GatorError, MissingExtraError
from gator.suggest import did_you_mean


def unknown(source: str, name: str, names: Sequence[str], error: type[GatorError]) -> GatorError:
    """The `error` to raise for a `name` that `source` does not have; networks and data sets have errors of their own."""
    rest = " ..." if len(names) > 8 else ""
    hint = did_you_mean(name, names, otherwise=f"it has {', '.join(names[:8])}{rest}")
    return error(f"{source} has no {name!r}; {hint}")


def needs(package: str, extra: str) -> ModuleType:
    """Import an optional package; if it is not installed, raise an error that names the extra to install."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != package.partition(".")[0]:
            raise
        raise MissingExtraError(f"{package} is not installed; pip install 'torch-gator[{extra}]'") from error
