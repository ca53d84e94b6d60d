"""Everything the library uses of torch that is not public, in one place."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils import _pytree as pytree


def children_of(structure: pytree.TreeSpec) -> Sequence[pytree.TreeSpec]:
    """The parts of a structure; from torch 2.10 on a method says them, and the attribute is deprecated."""
    return structure.children() if "children" in vars(pytree.TreeSpec) else structure.children_specs
