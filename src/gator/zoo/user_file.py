"""Functions in a user's own file, `path/to/file.py:function`: networks and data sets that Gator does not know.

The file is imported as Python would import it: modules beside it are found, now and later, and its classes can be pickled. An
installed module with the same name stays what it is.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from gator.errors import GatorError
from gator.zoo.by_name import unknown


def is_file(name: str) -> bool:
    """Whether `name` has the form path/to/file.py:function, or path/to/file.py with the function forgotten."""
    source, separator, _ = name.partition(":")
    return source.endswith(".py") or (bool(separator) and Path(name.rpartition(":")[0]).suffix == ".py")


def function_in(name: str, error: type[GatorError]) -> Callable[..., Any]:
    """The function that path/to/file.py:function names. The file is executed anew by every call."""
    file, _, function = name.rpartition(":")
    if not file or not function:
        raise error(f"{name!r} names a file but no function in it; write {name}:factory")
    if not Path(file).is_file():
        raise error(f"{name}: there is no file {file}")
    with _neighbours_first(name):
        try:
            module = _imported(Path(file).resolve())
        except Exception as problem:
            raise error(f"{name}: {file} cannot be imported: {type(problem).__name__}: {problem}") from problem
    found = vars(module).get(function)
    if not callable(found):
        functions = [n for n, f in vars(module).items() if callable(f) and not n.startswith("_")]
        raise unknown(file, function, functions, error)
    return found  # type: ignore[no-any-return]


def call(name: str, function: Callable[..., Any], arguments: dict[str, Any], error: type[GatorError], how: str) -> Any:
    """What a user's function returns. What it raises becomes an `error` with the line it came from and `how` it was called."""
    with _neighbours_first(name):
        try:
            return function(**arguments)
        except Exception as problem:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            raise error(
                f"{name} raised {type(problem).__name__}: {problem} ({where.filename}:{where.lineno})\n  {how}"
            ) from problem


@contextmanager
def _neighbours_first(name: str) -> Iterator[None]:
    """Search the folder of a user's file first while its code runs, as `python file.py` does.

    Afterwards the folder is searched last: what the file's classes import later is found, and a module that happens to lie
    there takes the place of no installed one.
    """
    folder = str(Path(name.rpartition(":")[0]).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()  # the file may have been written a moment ago
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _imported(path: Path) -> ModuleType:
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    before = sys.modules.get(name)
    # Dataclasses look their module up there while it is being executed, and pickle does when it writes an instance.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


def _module_name(path: Path) -> str:
    """The name that `import` knows the file by, so that a worker process can import it too; a unique one if that is taken."""
    folder = sys.path.pop(0)  # searched last, so that installed modules come first
    try:
        spec = importlib.util.find_spec(path.stem)
    except (ImportError, ValueError):  # a dot in the name of the file, or a module without a spec, such as __main__
        spec = None
    finally:
        sys.path.insert(0, folder)
    if spec is not None and spec.origin == str(path):
        return path.stem
    return f"{path.stem.replace('.', '_')}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
