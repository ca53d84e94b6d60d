"""An axis of many names, in the order of the network: every name if there is room, else the stage that each part belongs to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

MOST_NAMES = 60
_MOST_STAGES = 14


def name_axis(names: Sequence[str], *, vertical: bool = False) -> dict[str, Any]:
    """The Vega-Lite axis for these names."""
    if len(names) <= MOST_NAMES:
        common: dict[str, Any] = {"labelLimit": 130, "labelFontSize": 10, "labelOverlap": "greedy"}
        return common if vertical else {**common, "labelAngle": -90}
    stages = stages_of(names)
    ends = [*list(stages)[1:], len(names)]
    wide = [start for start, end in zip(stages, ends, strict=True) if end - start >= len(names) / 40]  # the others have no room
    last = [stages[start].rpartition(".")[2] for start in wide]
    short = len(set(last)) == len(last) and not any(part.isdigit() for part in last)
    firsts = {names[start]: part if short else stages[start] for start, part in zip(wide, last, strict=True)}
    shown = {"labelAngle": 0, "labelAlign": "left", "labelOverlap": "greedy", "labelLimit": 90}
    return {
        "values": list(firsts),
        "labelExpr": f"{json.dumps(firsts)}[datum.value]",
        **({"labelLimit": 130, "labelOverlap": "greedy"} if vertical else shown),
    }


def stages_of(names: Sequence[str]) -> dict[int, str]:
    """The index at which each stage begins, and its name: as many leading parts of the names as give a few stages."""
    found: dict[int, str] = {}
    for depth in range(1, 6):
        heads = [".".join(name.split(".")[:depth]) for name in names]
        starts = {i: head for i, head in enumerate(heads) if i == 0 or heads[i - 1] != head}
        if len(starts) > _MOST_STAGES:
            break
        if len(starts) > len(found):
            found = starts
    return found
