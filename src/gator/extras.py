"""Optional packages: imported where they are used; a missing one is reported with the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from gator.errors import MissingExtraError


def optional_import(package: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a package that only `purpose` needs.

    Raises MissingExtraError if it is not installed. An installed package that fails to import raises its own error.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise  # a package that this one needs
        raise MissingExtraError(f"{purpose} needs {package}; pip install 'torch-gator[{extra}]'") from error
