"""Packages that only some latency settings need: imported where they are used, and named if they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from gator.errors import MissingExtraError


def required(package: str, extra: str, purpose: str) -> ModuleType:
    """The package; MissingExtraError with the extra to install if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(f"{purpose} needs {package}; pip install 'torch-gator[{extra}]'") from error


def required_for_tables(package: str) -> ModuleType:
    return required(package, "latency", "a latency table")
