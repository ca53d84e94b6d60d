"""Accuracy against multiply-adds and against latency, for every round of every run, with the paper's points where it has some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gator.report.figure import ACCENT, GREY, INK, PAPER, Figure, Spec, chart, values
from gator.report.numbers import runtime_name
from gator.report.paper_points import PaperPoint, paper_points
from gator.report.run_content import NetworkFacts, RunContent

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_MOST_LABELS = 9
_WIDTH = 448
_LEAST_RANGE = 1.0  # points of accuracy
Share = Callable[[NetworkFacts, NetworkFacts], float | None]


def front_charts(runs: Sequence[RunContent]) -> list[Figure]:
    """One figure for multiply-adds, and one for every runtime on which all these runs were timed."""
    shown = [run for run in runs if run.dense is not None and run.rounds]
    if not shown:
        return []
    points = [point for run in shown for point in paper_points(run.recipe)]
    found = [_front(shown, list(dict.fromkeys(points)), "macs", "multiply-adds", lambda one, dense: one.macs / dense.macs)]
    timed = [run for run in shown if run.dense is not None and run.dense.latency_ms]
    for runtime in dict.fromkeys(name for run in timed if run.dense for name in run.dense.latency_ms):
        found.append(_front(timed, points, f"latency-{runtime}", runtime_name(runtime), _time_left(runtime)))
    return found


def same_accuracy(runs: Sequence[RunContent]) -> bool:
    """Whether accuracies can share an axis: the same network on the same data."""
    return len({(run.recipe.model.name, run.recipe.data.name) for run in runs}) == 1


def _time_left(runtime: str) -> Share:
    def left(one: NetworkFacts, dense: NetworkFacts) -> float | None:
        ms, whole = one.latency_ms.get(runtime), dense.latency_ms.get(runtime)
        return ms / whole if ms is not None and whole else None

    return left


def _front(runs: Sequence[RunContent], paper: list[PaperPoint], key: str, what: str, share: Share) -> Figure:
    absolute = same_accuracy(runs)
    rows: list[dict[str, Any]] = []
    for run in runs:
        dense = run.dense
        assert dense is not None
        for one in (dense, *run.rounds):
            left = share(one, dense)
            if left is not None:
                y = one.accuracy if absolute else one.accuracy - dense.accuracy
                label = one.name if len(run.rounds) <= 4 else one.name.removeprefix("target ").removeprefix("alpha ")
                rows.append({"run": _run_name(run, runs), "name": one.name, "label": label, "left": left, "y": y, "dense": one is dense})
    own = {"left": "macs_left"} if key == "macs" else {"left": "latency_left"}
    published = [
        {"name": point.name, "left": getattr(point, own["left"]), "y": point.accuracy, "source": point.source}
        for point in paper
        if absolute and getattr(point, own["left"]) is not None
    ]
    highest = max(row["left"] for row in [*rows, *published])
    x = {
        "field": "left", "type": "quantitative", "title": f"{what} left" if key == "macs" else f"latency left, {what}", "axis": {"format": "%", "tickCount": 5, "grid": True},
        "scale": {"domain": [0, max(1.0, highest) * 1.04], "nice": False},
    }  # fmt: skip
    title = "accuracy, %" if absolute else "accuracy, points from dense"
    y = {"field": "y", "type": "quantitative", "title": title, "scale": {"domain": _range([row["y"] for row in [*rows, *published]]), "nice": True}}
    y["axis"] = {"tickCount": 4, "minExtent": 40, "maxExtent": 40}
    form = ".2f" if absolute else "+.2f"
    names = list(dict.fromkeys(row["run"] for row in rows))
    shape = {"field": "run", "type": "nominal", "legend": None, "scale": {"domain": names, "range": list(_SHAPES)}}
    tooltip = [
        {"field": "run", "type": "nominal"}, {"field": "name", "type": "nominal"},
        {"field": "left", "type": "quantitative", "format": ".1%"},
        {"field": "y", "type": "quantitative", "format": form, "title": "accuracy"},
    ]  # fmt: skip
    layers: list[Spec] = [*(_published(published, x, y) if published else [])]
    layers += [
        {
            "data": values([row for row in rows if not row["dense"]]),
            "mark": {"type": "line", "stroke": ACCENT, "strokeWidth": 1.2, "strokeOpacity": 0.55, "aria": False},
            "encoding": {"x": x, "y": y, "detail": {"field": "run"}, "order": {"field": "left"}},
        },
        {
            "data": values(rows),
            "mark": {"type": "point", "size": 62, "strokeWidth": 1.6, "opacity": 1, "filled": False, "aria": False},
            "encoding": {
                "x": x, "y": y, "shape": shape, "tooltip": tooltip,
                "stroke": {"condition": {"test": "datum.dense", "value": INK}, "value": ACCENT},
                "fill": {"condition": {"test": "datum.dense", "value": PAPER}, "value": ACCENT},
            },
        },
    ]  # fmt: skip
    layers += _labels(rows, x, y, len(names))
    return Figure(
        f"front-{key}",
        "Accuracy against multiply-adds" if key == "macs" else f"Accuracy against latency on {what}",
        _caption(names, bool(published), absolute),
        chart(layers, height=260, width=_WIDTH),
        small=True,
    )


def _range(found: list[float]) -> list[float]:
    """An axis with room around the points, and at least a point of accuracy high: less is chance, not a finding."""
    low, high = min(found), max(found)
    room = max(0.12 * (high - low), (_LEAST_RANGE - (high - low)) / 2)
    return [low - room, high + room]


def _run_name(run: RunContent, runs: Sequence[RunContent]) -> str:
    """The name of a run; its folder where another has the same name."""
    return run.name if sum(other.name == run.name for other in runs) == 1 else run.folder


def _labels(rows: list[dict[str, Any]], x: Spec, y: Spec, runs: int) -> list[Spec]:
    """The name of every round beside its point; with several runs the name of the run beside its last."""
    if runs > 1:
        last: dict[str, dict[str, Any]] = {}
        for row in rows:
            if not row["dense"] and row["left"] <= last.get(row["run"], row)["left"]:
                last[row["run"]] = {**row, "label": row["run"]}
        shown = list(last.values())
    else:
        shown = [row for row in rows if not row["dense"]]
    shown = [*shown, *({**row, "label": "dense"} for row in rows if row["dense"] and runs == 1)]
    if len(shown) > _MOST_LABELS:
        return []
    return [
        {
            "data": values(shown),
            "mark": {"type": "text", "dy": 15, "aria": False, "limit": 130, **look},
            "encoding": {"x": x, "y": y, "text": {"field": "label"}},
        }
        for look in ({"color": PAPER, "stroke": PAPER, "strokeWidth": 4}, {"color": GREY})  # the first clears the ground
    ]


def _published(rows: list[dict[str, Any]], x: Spec, y: Spec) -> list[Spec]:
    tooltip = [
        {"field": "name", "type": "nominal", "title": "paper"}, {"field": "left", "type": "quantitative", "format": ".1%"},
        {"field": "y", "type": "quantitative", "format": ".2f", "title": "accuracy"}, {"field": "source", "type": "nominal"},
    ]  # fmt: skip
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


def _caption(names: list[str], published: bool, absolute: bool) -> str:
    symbols = dict(zip(("circle", "square", "triangle", "diamond", "cross", "inverted triangle"), names, strict=False))
    parts = "Open: the dense network. Green: the network of every round."
    if len(names) > 1:
        parts = "Open: the dense networks. Green: " + "; ".join(f"{symbol}: {name}" for symbol, name in symbols.items()) + "."
    if published:
        parts += " Grey diamonds: the paper's networks."
    if not absolute:
        parts += " The runs differ in network or data, so accuracies are differences from each dense network."
    return parts
