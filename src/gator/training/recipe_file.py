"""`read_recipe`: recipes from TOML and back. An unknown key or a value of the wrong type is an error that names the key.

Keys and types are checked against the dataclasses of recipe.py, which are the only list of them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gator.errors import MissingExtraError, RecipeError
from gator.suggest import did_you_mean
from gator.training.recipe import Recipe
from gator.training.recipe_check import check, listed
from gator.training.shipped import SHIPPED, shipped_names

DEFAULT = "digits"
T = TypeVar("T")


def read_recipe(source: str | os.PathLike[str] = DEFAULT, changes: Iterable[str] = ()) -> Recipe:
    """Read a recipe from a TOML file.

    Args:
        source: the path of a file, or the name of a recipe that comes with Gator ("digits", "cifar10-resnet56-flops", ...).
        changes: keys to change, each as "key=value" with the value in TOML, for example "prune.target=0.4"; a string needs no
            quotes. A change of prune.target, prune.targets or prune.alphas removes the other two.

    Returns:
        A `gator.Recipe`.

    Raises:
        RecipeError: if there is no such recipe, if a key is unknown or missing, or if a value has the wrong type or is out of
            range. The message names the key.

    Examples:
        >>> recipe = gator.read_recipe("digits", ["prune.target=0.4", "data.batch=32"])
        >>> recipe.prune.target, recipe.data.batch
        (0.4, 32)
    """
    path = Path(source)
    if not path.is_file():
        shipped = SHIPPED / f"{source}.toml"
        if not shipped.is_file():
            known = ", ".join(shipped_names())
            raise RecipeError(f"there is no recipe {str(source)!r}: it is neither a file nor one of {known}")
        path = shipped
    try:
        return recipe_from_text(path.read_text(encoding="utf-8"), changes)
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not a text file in UTF-8: {error}") from error
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error


def recipe_from_text(text: str, changes: Iterable[str] = ()) -> Recipe:
    try:
        content = _parser()(text)
    except ValueError as error:
        raise RecipeError(f"not valid TOML: {error}") from error
    for change in changes:
        _change(content, change)
    return check(_made(Recipe, content, ""))


def _parser() -> Callable[[str], dict[str, Any]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise MissingExtraError("reading recipes needs tomli on Python 3.10; pip install 'torch-gator[train]'") from error
    parse: Callable[[str], dict[str, Any]] = tomllib.loads
    return parse


def _change(content: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise RecipeError(f"--set {change!r}: expected key=value, for example prune.target=0.4")
    try:
        value = _parser()(f"value = {text}")["value"]
    except ValueError:
        value = text.strip()  # a bare word is a string
    for part in parts[:-1]:
        inner = content.setdefault(part, {})
        if not isinstance(inner, dict):
            raise RecipeError(f"--set {change!r}: {part} is a single value, not a table")
        content = inner
    content[parts[-1]] = value
    goals = ("target", "targets", "alphas")
    if parts[:-1] == ["prune"] and parts[-1] in goals:
        for other in goals:  # a recipe has one of them
            if other != parts[-1]:
                content.pop(other, None)


def _made(kind: type[T], content: Any, path: str) -> T:
    if not isinstance(content, Mapping):
        raise RecipeError(f"{path.rstrip('.')} = {content!r}; expected a table [{path.rstrip('.')}]")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in content:
        if key not in fields:
            raise RecipeError(f"{path}{key} is not a key; {_hint(path, key, tuple(fields))}")
    for name, field in fields.items():
        if name not in content and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecipeError(f"{path}{name} is missing; expected {_described(hints[name])}")
    return kind(**{key: _value(hints[key], value, f"{path}{key}") for key, value in content.items()})


def _hint(path: str, key: str, beside: tuple[str, ...]) -> str:
    """A suggestion for an unknown key: the same key in another table, or a key or table beside it with a similar name."""
    elsewhere = [known for known in _keys(Recipe, "") if known.rpartition(".")[2] == key]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    known = [f"{path}{name}" for name in beside]
    return did_you_mean(f"{path}{key}", known, otherwise=f"expected one of {', '.join(known)}", at_most=1)


def _keys(kind: type, path: str) -> list[str]:
    hints = typing.get_type_hints(kind)
    found = []
    for name in (field.name for field in dataclasses.fields(kind)):
        inner = hints[name]
        nested = isinstance(inner, type) and dataclasses.is_dataclass(inner)
        found += _keys(inner, f"{path}{name}.") if nested else [f"{path}{name}"]
    return found


def _value(hint: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _made(typing.cast("type[Any]", hint), value, f"{key}.")
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise RecipeError(f"{key} = {value!r}; expected {_described(hint)}")
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, item, key) for item in value)
    for kind in _alternatives(hint):
        if kind is float and type(value) in (int, float):
            if not math.isfinite(value):
                raise RecipeError(f"{key} = {value}; expected a finite number")
            return float(value)
        if type(value) is kind or (typing.get_origin(kind) is typing.Literal and value in typing.get_args(kind)):
            return value
    raise RecipeError(f"{key} = {value!r}; expected {_described(hint)}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, without None; otherwise the type itself."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # the second if a Literal is among them
        return tuple(kind for kind in typing.get_args(hint) if kind is not type(None))
    return (hint,)


_NOUNS: dict[Any, str] = {int: "integer", float: "number", str: "string"}


def _described(hint: Any) -> str:
    if dataclasses.is_dataclass(hint):
        return "a table"
    if typing.get_origin(hint) is tuple:
        return f"a list of {' or '.join(_NOUNS[kind] + 's' for kind in _alternatives(typing.get_args(hint)[0]))}"
    return " or ".join(_described_one(kind) for kind in _alternatives(hint))


def _described_one(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return listed(typing.get_args(kind))
    return "true or false" if kind is bool else f"{'an' if kind is int else 'a'} {_NOUNS[kind]}"


def recipe_text(recipe: Recipe) -> str:
    """The recipe as TOML with every key written out; reading it gives the same recipe again."""
    content = as_mapping(recipe)
    top = [f"{key} = {_toml(value)}" for key, value in content.items() if not isinstance(value, dict)]
    tables = [
        "\n".join([f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in table.items() if value is not None)])
        for key, table in content.items()
        if isinstance(table, dict)
    ]
    return "\n\n".join(["\n".join(top), *tables]) + "\n"


def as_mapping(recipe: Recipe) -> dict[str, Any]:
    """The recipe as nested dicts and lists, as in JSON."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe)))
    return found


def _toml(value: Any) -> str:
    """A value in TOML, whose strings, numbers, booleans and lists are written as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def value_at(mapping: Mapping[str, Any], key: str) -> Any:
    """The value of a key such as "prune.lr"."""
    found: Any = mapping
    for part in key.split("."):
        found = found[part]
    return found


def differing_keys(one: Mapping[str, Any], two: Mapping[str, Any], path: str = "") -> list[str]:
    """The keys in which two recipes differ."""
    found = []
    for key in dict.fromkeys([*one, *two]):
        a, b = one.get(key), two.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differing_keys(a, b, f"{path}{key}.")
        elif a != b:
            found.append(f"{path}{key}")
    return found
