"""Suggestions for a misspelled name, in the same words everywhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str = "", at_most: int = 3) -> str:
    """ "did you mean conv1 or conv2?" with the known names nearest to `name`; `otherwise` if none is near.

    >>> did_you_mean("conv11", ["conv1", "head"], otherwise="print(graph) lists the edges")
    'did you mean conv1?'
    """
    close = difflib.get_close_matches(name, list(known), n=at_most, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
