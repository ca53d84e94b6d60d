"""What is asked for by name: the names nearest to a wrong one, the package behind a name, a function in a person's own file.

Whoever asks says which error it is, so that a wrong network and a wrong data set stay apart.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gator.errors import GatorError, MissingExtraError
from gator.suggest import did_you_mean


def is_file(name: str) -> bool:
    """Whether `name` is of the form path/to/file.py:function (or wants to be)."""
    source, separator, _ = name.partition(":")
    return source.endswith(".py") or (bool(separator) and Path(name.rpartition(":")[0]).suffix == ".py")


def unknown(source: str, name: str, names: Sequence[str], error: type[GatorError]) -> GatorError:
    """The error for a `name` that `source` does not have."""
    rest = " ..." if len(names) > 8 else ""
    hint = did_you_mean(name, names, otherwise=f"it has {', '.join(names[:8])}{rest}")
    return error(f"{source} has no {name!r}; {hint}")


def needs(package: str, extra: str) -> ModuleType:
    """An optional package, or an error that names the extra it comes with."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != package.partition(".")[0]:
            raise
        raise MissingExtraError(f"{package} is not installed; pip install 'torch-gator[{extra}]'") from error


def function_in(name: str, error: type[GatorError]) -> Callable[..., Any]:
    """The function that path/to/file.py:function names."""
    file, _, function = name.rpartition(":")
    if not file or not function:
        raise error(f"{name!r} names a file but no function in it; write {name}:factory")
    path = Path(file)
    if not path.is_file():
        raise error(f"{name}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # as `python file.py` does, so that it finds its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise error(f"{name}: {path} cannot be imported: {type(problem).__name__}: {problem}") from problem
    finally:
        sys.path.pop(0)
    found = getattr(module, function, None)
    if not callable(found):
        functions = [n for n, f in vars(module).items() if callable(f) and not n.startswith("_")]
        raise unknown(file, function, functions, error)
    return found  # type: ignore[no-any-return]


def call(name: str, function: Callable[..., Any], arguments: dict[str, Any], error: type[GatorError], how: str) -> Any:
    """What a person's own function returns; what it raises is told with the line it came from, and `how` it was called."""
    try:
        return function(**arguments)
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        raise error(
            f"{name} raised {type(problem).__name__}: {problem} ({where.filename}:{where.lineno})\n  {how}"
        ) from problem
