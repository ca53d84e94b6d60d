"""Which blocks of a network are gone: modules none of whose layers is left."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def removed_blocks(layers: Sequence[str], gone: Collection[str]) -> tuple[str, ...]:
    """The largest modules all of whose layers are gone, in the order of the layers; a single layer counts as a module.

    >>> removed_blocks(["stem", "a.0.conv1", "a.0.conv2", "a.1.conv1"], {"a.0.conv1", "a.0.conv2"})
    ('a.0',)
    """
    missing = set(gone)
    found: dict[str, None] = {}
    for layer in layers:
        if layer not in missing:
            continue
        parts = layer.split(".")
        modules = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        found.setdefault(next(module for module in modules if all(each in missing for each in layers if _inside(each, module))))
    return tuple(found)


def _inside(layer: str, module: str) -> bool:
    return layer == module or layer.startswith(f"{module}.")
