"""Read values of declared types from parsed JSON; anything else raises a ValueError that says what was found."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def field(data: Any, name: str, kind: type[T]) -> T:
    """The value under `name` of a JSON object, of exactly this type (a bool is not accepted as an int)."""
    if type(data) is not dict:
        raise ValueError(f"a {type(data).__name__} where an object with {name!r} was expected")
    if name not in data:
        raise ValueError(f"{name!r} is missing")
    value = data[name]
    if type(value) is not kind:
        raise ValueError(f"{name!r} is a {type(value).__name__}; expected {_article(kind)}")
    return value


def strings(data: Any, name: str) -> tuple[str, ...]:
    """A list of strings under `name`."""
    return _items(data, name, str)


def counts(data: Any, name: str, *, least: int = 0) -> tuple[int, ...]:
    """A list of integers, none below `least`, under `name`."""
    found = _items(data, name, int)
    if any(number < least for number in found):
        raise ValueError(f"{name!r} holds {min(found)}; expected numbers from {least}")
    return found


def floats(data: Any, name: str) -> tuple[float, ...]:
    """A list of numbers under `name`."""
    found: list[Any] = field(data, name, list)
    for item in found:
        if type(item) not in (int, float):
            raise ValueError(f"{name!r} holds a {type(item).__name__}; expected a number")
    try:
        return tuple(float(item) for item in found)
    except OverflowError as error:
        raise ValueError(f"{name!r} holds a number that is too large") from error


def _items(data: Any, name: str, kind: type[T]) -> tuple[T, ...]:
    found: list[Any] = field(data, name, list)
    for item in found:
        if type(item) is not kind:
            raise ValueError(f"{name!r} holds a {type(item).__name__}; expected {_article(kind)}")
    return tuple(found)


def _article(kind: type) -> str:
    return f"{'an' if kind is int else 'a'} {kind.__name__}"
