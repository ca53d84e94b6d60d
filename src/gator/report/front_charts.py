"""Accuracy against multiply-adds and latency for every round of every run, with the paper's points where it has some.

Costs are shares of each dense network, so that runs, runtimes and published figures fit on one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gator.report.figure import ACCENT, GREY, INK, PAPER, Figure, Spec, chart, values
from gator.report.numbers import runtime_name
from gator.report.paper_points import PaperPoint, paper_points
from gator.report.run_content import NetworkFacts, RunContent, run_labels

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_MOST_LABELS = 9
_WIDTH = 448
_LEAST_RANGE = 1.0  # points of accuracy
_LEGEND = {
    "orient": "top", "title": None, "labelColor": GREY, "labelLimit": 180, "offset": 28, "columns": 1,
    "symbolStrokeColor": ACCENT, "symbolFillColor": ACCENT,
}  # fmt: skip
Row = dict[str, Any]
Share = Callable[[NetworkFacts, NetworkFacts], float | None]


def front_charts(runs: Sequence[RunContent]) -> list[Figure]:
    """One figure for multiply-adds, and one for every runtime on which one of these runs was timed."""
    shown = [run for run in runs if run.dense is not None and run.rounds]
    if not shown:
        return []
    absolute = same_accuracy(shown)
    paper = list(dict.fromkeys(point for run in shown for point in paper_points(run.recipe))) if absolute else []
    found = [
        _front(
            "macs", "multiply-adds", _rows(shown, lambda one, dense: one.macs / dense.macs, absolute),
            _published(paper, lambda point: point.macs_left), absolute,
        )
    ]  # fmt: skip
    for runtime in dict.fromkeys(name for run in shown if run.dense for name in run.dense.latency_ms):
        published = _published(paper, lambda point: point.latency_left)
        rows = _rows(shown, _time_left(runtime), absolute)
        if rows:
            found.append(_front(f"latency-{runtime}", f"latency on {runtime_name(runtime)}", rows, published, absolute))
    return found


def same_accuracy(runs: Sequence[RunContent]) -> bool:
    """Whether accuracies can share an axis: the same network on the same data."""
    return len({(run.recipe.model.name, run.recipe.data.name) for run in runs}) == 1


def _time_left(runtime: str) -> Share:
    def left(one: NetworkFacts, dense: NetworkFacts) -> float | None:
        ms, whole = one.latency_ms.get(runtime), dense.latency_ms.get(runtime)
        return ms / whole if ms is not None and whole else None

    return left


def _rows(runs: Sequence[RunContent], share: Share, absolute: bool) -> list[Row]:
    """A row for every network: its share of the cost, and its accuracy or the difference from the dense network."""
    rows = []
    for run, label in zip(runs, run_labels(runs), strict=True):
        dense = run.dense
        assert dense is not None
        for one in (dense, *run.rounds):
            left = share(one, dense)
            if left is None:
                continue
            rows.append(
                {
                    "run": label,
                    "name": one.name,
                    "label": one.name if len(run.rounds) == 1 or one is dense else one.name.rpartition(" ")[2],
                    "left": left,
                    "y": one.accuracy if absolute else one.accuracy - dense.accuracy,
                    "dense": one is dense,
                }
            )
    return rows


def _published(points: Sequence[PaperPoint], left: Callable[[PaperPoint], float | None]) -> list[Row]:
    return [
        {"name": point.name, "left": left(point), "y": point.accuracy, "source": point.source}
        for point in points
        if left(point) is not None
    ]


def _front(key: str, what: str, rows: list[Row], published: list[Row], absolute: bool) -> Figure:
    everything = [*rows, *published]
    x = {
        "field": "left", "type": "quantitative", "title": f"{what} left", "axis": {"format": "%", "tickCount": 5, "grid": True},
        "scale": {"domain": [0, max([1.0, *(row["left"] for row in everything)]) * 1.04], "nice": False},
    }  # fmt: skip
    y = {
        "field": "y", "type": "quantitative", "title": "accuracy, %" if absolute else "accuracy, points from dense",
        "scale": {"domain": _range([row["y"] for row in everything]), "nice": True},
        "axis": {"tickCount": 4, "minExtent": 40, "maxExtent": 40},
    }  # fmt: skip
    names = list(dict.fromkeys(row["run"] for row in rows))
    layers = [*_of_paper(published, x, y), *_of_runs(rows, names, x, y, ".2f" if absolute else "+.2f")]
    if len(names) == 1 and len(rows) <= _MOST_LABELS:
        layers += _labels(rows, x, y)
    return Figure(
        f"front-{key}",
        f"Accuracy against {what}",
        _caption(rows, published, absolute),
        chart(layers, height=260, width=_WIDTH),
        heading=what.capitalize() if key == "macs" else f"Latency{what.removeprefix('latency')}",
        small=True,
    )


def _range(found: list[float]) -> list[float]:
    """An axis with room around the points, and at least one point of accuracy high: smaller differences are mostly chance."""
    low, high = min(found), max(found)
    room = max(0.12 * (high - low), (_LEAST_RANGE - (high - low)) / 2)
    return [low - room, high + room]


def _of_runs(rows: list[Row], names: list[str], x: Spec, y: Spec, form: str) -> list[Spec]:
    """The networks of the runs, joined by a line for every run; the dense ones are open."""
    shapes = {"domain": names, "range": list(_SHAPES)}
    tooltip = [
        {"field": "run", "type": "nominal"},
        {"field": "name", "type": "nominal"},
        {"field": "left", "type": "quantitative", "format": ".1%"},
        {"field": "y", "type": "quantitative", "format": form, "title": "accuracy"},
    ]
    line: Spec = {
        "data": values([row for row in rows if not row["dense"]]),
        "mark": {"type": "line", "stroke": ACCENT, "strokeWidth": 1.2, "strokeOpacity": 0.55, "aria": False},
        "encoding": {"x": x, "y": y, "detail": {"field": "run"}, "order": {"field": "left"}},
    }
    marks: Spec = {
        "data": values(rows),
        "mark": {"type": "point", "size": 62, "strokeWidth": 1.6, "opacity": 1, "filled": False, "aria": False},
        "encoding": {
            "x": x, "y": y, "tooltip": tooltip,
            "shape": {"field": "run", "type": "nominal", "scale": shapes, "legend": _LEGEND if len(names) > 1 else None},
            "stroke": {"condition": {"test": "datum.dense", "value": INK}, "value": ACCENT},
            "fill": {"condition": {"test": "datum.dense", "value": PAPER}, "value": ACCENT},
        },
    }  # fmt: skip
    return [line, marks]


def _labels(rows: list[Row], x: Spec, y: Spec) -> list[Spec]:
    """The name of every round below its point, on cleared ground."""
    return [
        {
            "data": values(rows),
            "mark": {"type": "text", "dy": 15, "aria": False, "limit": 130, **look},
            "encoding": {"x": x, "y": y, "text": {"field": "label"}},
        }
        for look in ({"color": PAPER, "stroke": PAPER, "strokeWidth": 4}, {"color": GREY})
    ]


def _of_paper(rows: list[Row], x: Spec, y: Spec) -> list[Spec]:
    if not rows:
        return []
    tooltip = [
        {"field": "name", "type": "nominal", "title": "paper"},
        {"field": "left", "type": "quantitative", "format": ".1%"},
        {"field": "y", "type": "quantitative", "format": ".2f", "title": "accuracy"},
        {"field": "source", "type": "nominal"},
    ]
    line: Spec = {
        "data": values(rows),
        "mark": {"type": "line", "stroke": GREY, "strokeWidth": 1, "strokeDash": [2, 3], "aria": False},
        "encoding": {"x": x, "y": y, "order": {"field": "left"}},
    }
    marks: Spec = {
        "data": values(rows),
        "mark": {"type": "point", "shape": "diamond", "size": 50, "stroke": GREY, "fill": PAPER, "opacity": 1, "aria": False},
        "encoding": {"x": x, "y": y, "tooltip": tooltip},
    }
    return [line, marks]


def _caption(rows: list[Row], published: list[Row], absolute: bool) -> str:
    goals = {row["name"].partition(" ")[0] for row in rows if not row["dense"]}
    several = len({row["run"] for row in rows}) > 1
    named = "a symbol for every run" if several else f"its {goals.pop()}" if len(goals) == 1 else "its name"
    parts = f"Open: the dense network. Green: the network of every round, with {named}."
    if published:
        sources = dict.fromkeys(str(row["source"]) for row in published)
        parts += f" Grey diamonds: the paper's networks ({'; '.join(sources)})."
    if not absolute:
        parts += " The runs differ in network or data, so accuracies are differences from each dense network."
    return parts
