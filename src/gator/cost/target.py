"""What a network may cost: a share of what it costs now, or an absolute figure with its unit. Read and printed here."""

from __future__ import annotations

import math
import re

from gator.errors import GatorError

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "KI": 2.0**10, "MI": 2.0**20, "GI": 2.0**30}
# A word, the unit of the cost it belongs to, and how many of those it is.
_WORDS = {
    "MACS": ("MACs", 1.0), "MAC": ("MACs", 1.0), "FLOPS": ("MACs", 0.5), "FLOP": ("MACs", 0.5),
    "BYTES": ("bytes", 1.0), "BYTE": ("bytes", 1.0), "B": ("bytes", 1.0),
}  # fmt: skip
# Times are whole words: with the prefixes above, "MS" would be megaseconds.
_TIMES = {"US": ("ms", 1e-3), "MS": ("ms", 1.0), "S": ("ms", 1e3)}


def parse_target(target: float | str, whole_cost: float, unit: str) -> float:
    """The target in the unit of the cost: 0.5, "0.5" and "50%" are shares of `whole_cost`, "300 MMACs" is a figure.

    Raises GatorError for what cannot be read, is outside its range, or has the unit of another cost.

    >>> parse_target("50%", 8.0, "ms")
    4.0
    """
    if isinstance(target, str):
        share = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", target)
        if share is None:
            return _absolute(target, unit)
        target = float(share.group(1)) / (100 if share.group(2) else 1)
    if isinstance(target, bool) or not isinstance(target, (int, float)) or not 0 < target <= 1:
        raise GatorError(
            f'target={target!r}; expected a share of the cost above 0 and up to 1 (0.5 or "50%"), '
            f'or a figure with its unit such as "{_example(unit)}"'
        )
    return float(target) * whole_cost


def _absolute(text: str, unit: str) -> float:
    match = re.fullmatch(r"\s*([0-9][0-9_,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*(\S.*?)\s*", text, re.IGNORECASE)
    found = None if match is None else _read_unit(match.group(2), unit)
    if match is not None and found is not None:
        belongs, factor = found
        if belongs != unit:
            raise GatorError(f"target={text!r} is given in {belongs}, but the cost is counted in {unit}")
        value = float(match.group(1).replace(",", "").replace("_", "")) * factor
        if value > 0:
            return value
    raise GatorError(f'target={text!r} cannot be read; write a figure with its unit, such as "{_example(unit)}", or a share')


def _read_unit(written: str, unit: str) -> tuple[str, float] | None:
    """The unit of the cost that a word belongs to, and how many of those it is; None if it is not known.

    The unit of this cost as it stands comes first: a cost of one's own may count in "MB" or "mJ/frame".
    """
    word = written.upper()
    if word == unit.upper():
        return unit, 1.0
    if word in _TIMES:
        return _TIMES[word]
    for name, (belongs, factor) in (_WORDS | ({} if unit == "ms" else {unit.upper(): (unit, 1.0)})).items():
        prefix = word.removesuffix(name)
        if word.endswith(name) and prefix in _PREFIXES:
            return belongs, factor * _PREFIXES[prefix]
    return None


def _example(unit: str) -> str:
    return {"MACs": "300 MMACs", "bytes": "4 MB", "ms": "5 ms"}.get(unit, f"100 {unit}")


def shown(value: float, unit: str) -> str:
    """A figure for people: 300 MMACs, 4.2 MB."""
    if unit == "share":
        return f"{value:.1%}"
    if unit == "ms":
        return f"{value:.4g} ms"
    power = min(max(int(math.log10(value) // 3), 0), 4) if value >= 1 else 0
    word = {"bytes": "B"}.get(unit, unit)
    return f"{value / 10 ** (3 * power):.4g} {['', 'K', 'M', 'G', 'T'][power]}{word}"
