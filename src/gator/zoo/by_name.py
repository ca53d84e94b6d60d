"""What is asked for by name: suggestions for a wrong name."""

from __future__ import annotations

from collections.abc import Sequence

from gator.errors import GatorError
from gator.suggest import did_you_mean


def unknown(source: str, name: str, names: Sequence[str], error: type[GatorError]) -> GatorError:
    """The `error` to raise for a `name` that `source` does not have; networks and data sets have errors of their own."""
    rest = " ..." if len(names) > 8 else ""
    hint = did_you_mean(name, names, otherwise=f"it has {', '.join(names[:8])}{rest}")
    return error(f"{source} has no {name!r}; {hint}")
