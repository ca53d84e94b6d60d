"""What a network returns, as a flat list of named tensors: tuples, dicts, dataclasses and other objects that hold tensors.

torch flattens tuples, lists, dicts and the classes that are registered with it. Any other object (a cache of keys and values, a
distribution) is opened here: its attributes that hold tensors become parts of the structure, the others are kept as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from gator.errors import TraceError
from gator.private_torch import key_texts, pytree

LEAF_TYPES = (torch.Tensor, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Flat:
    """The leaves of a result, their names ("logits", "past_key_values.layers.0.keys", "1"), and its structure."""

    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    structure: pytree.TreeSpec

    def chosen(self, outputs: Sequence[str]) -> tuple[bool, ...]:
        """Which leaves lie under one of the names; all of them if no names are given."""
        return tuple(not outputs or any(is_under(name, given) for given in outputs) for name in self.names)


def is_under(name: str, prefix: str) -> bool:
    """Whether an output is the one that was named, or a part of it."""
    return name == prefix or name.startswith(f"{prefix}.")


def flattened(result: Any) -> Flat:
    """The leaves of what a network returned. Raises TraceError for an object that cannot be opened."""
    tree = pytree.tree_map(lambda leaf: _opened(leaf, ()), result)
    leaves, structure = pytree.tree_flatten(tree)
    names = key_texts(tree)
    return Flat(tuple(leaves), names if names is not None else tuple(map(str, range(len(leaves)))), structure)


class _Opened:
    """An object whose attributes with tensors are children in the structure."""

    def __init__(self, rest: _Rest, held: list[Any]) -> None:
        self.rest = rest
        self.held = held


class _Rest:
    """What remains of an object without its tensors: enough to make another one. Equal for objects of the same class."""

    def __init__(self, original: Any, names: tuple[str, ...]) -> None:
        self.original = copy.copy(original)
        self.names = names
        for name in names:
            object.__setattr__(self.original, name, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rest) and type(self.original) is type(other.original) and self.names == other.names

    def __hash__(self) -> int:
        return hash((type(self.original), self.names))

    def filled(self, held: Sequence[Any]) -> Any:
        made = copy.copy(self.original)
        for name, value in zip(self.names, held, strict=True):
            object.__setattr__(made, name, value)
        return made


def _opened(leaf: Any, inside: tuple[int, ...]) -> Any:
    """The leaf itself, or an `_Opened` in its place. `inside` are the objects that are being opened."""
    if isinstance(leaf, LEAF_TYPES):
        return leaf
    kind = type(leaf)
    if not _has_parts(leaf) or id(leaf) in inside:
        raise TraceError(
            f"the network returns a {kind.__module__}.{kind.__qualname__}, which cannot be taken apart into tensors\n"
            "  Return tensors in tuples, lists, dicts or dataclasses, or register the class with torch.utils._pytree."
        )
    held = {name: value for name, value in _attributes(leaf) if _holds_tensors(value, frozenset())}
    parts = [pytree.tree_map(lambda item: _opened(item, (*inside, id(leaf))), value) for value in held.values()]
    return _Opened(_Rest(leaf, tuple(held)), parts)


def _has_parts(value: Any) -> bool:
    """Whether an object is plain data: it has attributes, and is not a class, a function or a module."""
    return hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)) and not callable(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    else:
        yield from vars(value).items()


def _holds_tensors(value: Any, inside: frozenset[int]) -> bool:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            return True
        if isinstance(leaf, LEAF_TYPES) or not _has_parts(leaf) or id(leaf) in inside:
            continue
        if any(_holds_tensors(item, inside | {id(leaf)}) for _, item in _attributes(leaf)):
            return True
    return False


pytree.register_pytree_node(
    _Opened,
    lambda node: (node.held, node.rest),
    lambda held, rest: rest.filled(list(held)),
    serialized_type_name="gator.graph.outputs.opened",
    flatten_with_keys_fn=lambda node: (
        [(pytree.MappingKey(name), value) for name, value in zip(node.rest.names, node.held, strict=True)],
        node.rest,
    ),
)
