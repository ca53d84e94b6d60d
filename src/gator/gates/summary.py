"""What a user sees of a pruner: a table of the edges, printed once or updated while training goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from gator.cost.target import shown
from gator.extras import optional_import
from gator.gates.open_gates import OpenGates
from gator.gates.project import Scores

if TYPE_CHECKING:
    from gator.gates.pruner import Pruner

Row = tuple[str, str, str, str]


def head_of(pruner: Pruner) -> Row:
    """With a target: what an average channel of the edge is worth for its cost, as a multiple of the network's average."""
    return ("edge", "living", "mean pass" if pruner.target is None else "worth", "share of cost")


def rows_of(pruner: Pruner) -> list[Row]:
    """One row per edge: name, living and all channels, mean pass probability or worth of the living ones, share of the cost."""
    gates = pruner.gates
    widths = gates.widths()
    alive = gates.living()
    value = gates.probabilities.cpu().double().numpy() if pruner.target is None else _for_cost(pruner)
    prices = pruner.prices.per_channel(widths) * widths
    total = max(float(prices.sum()), 1e-300)
    rows = []
    for index, edge in enumerate(pruner.graph.edges):
        part = gates.of_edge(index)
        mean = f"{float(np.mean(value[part][alive[part]])):.3f}" if np.isfinite(value[part][alive[part]]).any() else "-"
        rows.append((edge.name, f"{widths[index]}/{edge.width}", mean, f"{prices[index] / total:.1%}"))
    return rows


def _for_cost(pruner: Pruner) -> Scores:
    """What channels are worth for what they cost, as multiples of the mean; nan for those that cost nothing."""
    assert isinstance(pruner.gates, OpenGates)
    worth, price = (each.cpu().double().numpy() for each in (pruner.gates.worth, pruner._loss.lambda_hat))
    found: Scores = np.where(price > 0, worth / np.maximum(price, 1e-300), np.nan)
    known = found[pruner.gates.living() & (price > 0)]
    mean = float(np.mean(known)) if len(known) else 0.0
    return found / mean if mean > 0 else np.full_like(found, np.nan)


def last_line(pruner: Pruner) -> str:
    text = f"{shown(pruner.cost_left, pruner.unit)} of {shown(pruner.whole_cost, pruner.unit)} left"
    text += f" ({pruner.cost_left / pruner.whole_cost:.1%}), step {pruner.steps_taken}"
    if pruner.target is None:
        text += f", alpha {pruner.alpha:.3g}"
    else:
        text += f"; target {shown(pruner.target, pruner.unit)}" + (", reached" if pruner.finished else "")
    return text


def summary_table(pruner: Pruner) -> str:
    rows = [head_of(pruner), *rows_of(pruner)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]) for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], last_line(pruner), *_recorded(pruner)])


def _recorded(pruner: Pruner) -> list[str]:
    """Why the network does not run its own forward, if it does not."""
    calls = dict.fromkeys(call.where() for call in pruner.unreachable)
    head = "the network runs as a recording with gates on, because its own forward gives no access to"
    return [head, *(f"  {where}" for where in calls)] if calls else []


class _View:
    """Redraws the table, at most twice a second."""

    def __init__(self, pruner: Pruner) -> None:
        live, table = (optional_import(name, extra="cli", purpose="the live view") for name in ("rich.live", "rich.table"))
        self._pruner, self._table, self._last = pruner, table.Table, 0.0
        self.live = live.Live(self._drawn(), auto_refresh=False)

    def _drawn(self) -> Any:
        table = self._table(caption=last_line(self._pruner))
        for column in head_of(self._pruner):
            table.add_column(column, justify="left" if column == "edge" else "right")
        for row in rows_of(self._pruner):
            table.add_row(*row)
        return table

    def update(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._last > 0.5:
            self._last = time.monotonic()
            self.live.update(self._drawn(), refresh=True)


@contextmanager
def live_view(pruner: Pruner) -> Iterator[None]:
    view = _View(pruner)
    with view.live:
        pruner._view = view
        try:
            yield
        finally:
            pruner._view = None
            view.update(now=True)
