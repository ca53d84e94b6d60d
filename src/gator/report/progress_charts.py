"""Accuracy, loss and cost over the epochs of a run, with the phases with gates shaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gator.report.figure import ACCENT, GREY, LINE, Figure, Spec, chart, values
from gator.report.numbers import cost_name
from gator.report.run_content import RunContent

_TITLES = {"train": "train", "prune": "gates", "finetune": "fine-tune"}
_NARROWEST = 300  # pixels: what a telephone leaves for the epochs
_LETTER = 6.2  # pixels


def progress_charts(run: RunContent) -> list[Figure]:
    """Three figures with the same epochs; none for a run without an epoch."""
    if not run.epochs:
        return []
    figures = [_accuracy(run), _loss(run), _cost(run)]
    return [figure for figure in figures if figure is not None]


def _accuracy(run: RunContent) -> Figure | None:
    rows: list[dict[str, Any]] = [
        {"epoch": e.number, "accuracy": e.accuracy, "part": _part(run, e.number)} for e in run.epochs if e.accuracy is not None
    ]
    if not rows:
        return None
    layers: list[Spec] = [*_bands(run, labels=True)]
    if run.dense is not None:
        layers.append(_level(run.dense.accuracy, "dense"))
    high = max(row["accuracy"] for row in rows)
    low = min(_settled(run, "accuracy", 100.0, min), *([] if run.dense is None else [run.dense.accuracy]))
    y = {**_y("accuracy"), "scale": {"domain": [math.floor(max(low - 1, 0)), min(100, math.ceil(high + 0.2))], "zero": False}}
    layers += _lines(rows, "accuracy", y, ".2f", len(run.epochs))
    cut_off = " Lower values at the beginning are cut off." if min(row["accuracy"] for row in rows) < low - 1 else ""
    return Figure(
        "accuracy",
        "Accuracy, %",
        "Accuracy on the test data after every epoch; dashed, that of the dense network. In the shaded epochs gates are on, "
        f"and the network is tested as it would be cut at that moment, with new batch-norm statistics.{cut_off}",
        chart(layers, height=220),
    )


def _loss(run: RunContent) -> Figure:
    parts = [("training", "loss"), ("test", "test_loss")]
    rows = [
        {"epoch": e.number, "loss": getattr(e, key), "of": name, "part": f"{name} {_part(run, e.number)}"}
        for name, key in parts
        for e in run.epochs
        if getattr(e, key) is not None
    ]
    shades = {"domain": ["training", "test"], "range": [GREY, ACCENT]}
    colour = {"field": "of", "type": "nominal", "legend": None, "scale": shades}
    high = max(_settled(run, "loss", 0.0, max), _settled(run, "test_loss", 0.0, max))
    y = {**_y("loss"), "scale": {"domain": [0, 1.15 * high], "nice": True}}
    cut_off = " Higher values at the beginning are cut off." if max(row["loss"] for row in rows) > 1.15 * high else ""
    layers = [*_bands(run), *_lines(rows, "loss", y, ".4f", len(run.epochs), colour)]
    return Figure(
        "loss",
        "Loss",
        f"Grey: the loss of training (with the distillation term, if there is one). Green: the loss on the test data.{cut_off}",
        chart(layers, height=150),
    )


def _cost(run: RunContent) -> Figure:
    rows = [{"epoch": e.number, "cost": e.cost_left, "part": "all"} for e in run.epochs]
    layers: list[Spec] = [*_bands(run)]
    targets = sorted({e.target for e in run.epochs if e.target is not None})
    layers += [_level(target, "") for target in targets]
    y = {**_y("cost", format="%"), "scale": {"domain": [0, 1.02], "nice": False}}
    layers += _lines(rows, "cost", y, ".1%", len(run.epochs))
    dashed = "; dashed, the target" if targets else ""
    return Figure(
        "cost",
        "Cost left",
        f"What is left of the cost that the recipe reduces ({cost_name(run.recipe.prune.cost)}), as a share of the dense "
        f"network{dashed}.",
        chart(layers, height=150),
    )


def _settled(run: RunContent, field: str, otherwise: float, worst: Callable[[list[float]], float]) -> float:
    """The worst value after the beginning of the run, which would press everything else against the edge of a chart.

    The beginning is the first half of the training of the dense network, or the first tenth of a run without it.
    """
    first = run.spans[0]
    begin = (first.first + first.last) / 2 if first.phase == "train" else len(run.epochs) / 10
    found = [getattr(e, field) for e in run.epochs if e.number > begin and getattr(e, field) is not None]
    return worst(found) if found else otherwise


def _part(run: RunContent, number: int) -> str:
    """The phase of an epoch: a line is not drawn across phases, because another network follows."""
    return next(f"{span.phase} {span.round}" for span in run.spans if span.first <= number <= span.last)


def _x(total: int) -> Spec:
    return {
        "field": "epoch", "type": "quantitative", "title": "epoch", "scale": {"domain": [0.5, total + 0.5], "nice": False},
        "axis": {"tickMinStep": 1, "format": "d", "tickCount": 8},
    }  # fmt: skip


def _y(field: str, **axis: Any) -> Spec:
    return {
        "field": field, "type": "quantitative", "title": None, "scale": {"zero": False, "nice": True},
        "axis": {"tickCount": 4, "minExtent": 40, "maxExtent": 40, **axis},
    }  # fmt: skip


def _bands(run: RunContent, *, labels: bool = False) -> list[Spec]:
    """A band behind the epochs of every phase; those with gates are shaded."""
    total = len(run.epochs)
    spans: list[dict[str, Any]] = [
        {"first": span.first - 0.5, "last": span.last + 0.5, "title": _TITLES[span.phase], "gates": span.phase == "prune"}
        for span in run.spans
    ]
    x = {"first": {**_x(total), "field": "first"}, "last": {"field": "last"}}
    shaded: Spec = {
        "data": values(spans),
        "transform": [{"filter": "datum.gates"}],
        "mark": {"type": "rect", "fill": ACCENT, "fillOpacity": 0.09, "aria": False},
        "encoding": {"x": x["first"], "x2": x["last"]},
    }
    borders: Spec = {
        "data": values(spans[1:]),
        "mark": {"type": "rule", "stroke": LINE, "aria": False},
        "encoding": {"x": x["first"]},
    }
    if not labels:
        return [shaded, borders]
    wide = [
        span for span in spans if (span["last"] - span["first"]) / total * _NARROWEST > _LETTER * len(str(span["title"])) + 4
    ]
    texts: Spec = {
        "data": values(wide),
        "mark": {"type": "text", "align": "left", "baseline": "bottom", "dx": 4, "dy": -4, "color": GREY, "aria": False},
        "encoding": {"x": x["first"], "y": {"value": 0}, "text": {"field": "title"}},
    }
    return [shaded, borders, texts] if wide else [shaded, borders]


def _level(at: float, label: str) -> Spec:
    """A dashed line across the chart."""
    return {
        "data": values([{"at": at, "label": label}]),
        "mark": {"type": "rule", "stroke": GREY, "strokeDash": [3, 3], "aria": False},
        "encoding": {"y": {"field": "at", "type": "quantitative", "scale": {"zero": False}}},
    }


def _lines(rows: list[dict[str, Any]], field: str, y: Spec, form: str, total: int, colour: Spec | None = None) -> list[Spec]:
    """The line of a figure, and a mark at the epoch that is pointed at, with its value."""
    x = _x(total)
    shade = colour or {"value": ACCENT}
    tooltip = [{"field": "epoch", "type": "quantitative"}, {"field": field, "type": "quantitative", "format": form}]
    if colour is not None:
        tooltip.append({"field": "of", "type": "nominal", "title": "on"})
    point: Spec = {
        "data": values(rows),
        "params": [
            {
                "name": "near",
                "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout", "encodings": ["x"]},
            }
        ],
        "mark": {"type": "point", "filled": True, "size": 42, "clip": True, "aria": False},
        "encoding": {
            "x": x, "y": y, "color": shade, "tooltip": tooltip,
            "opacity": {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0},
        },
    }  # fmt: skip
    line: Spec = {
        "data": values(rows),
        "mark": {"type": "line", "strokeWidth": 1.8, "strokeJoin": "round", "clip": True, "aria": False},
        "encoding": {"x": x, "y": y, "color": shade, "detail": {"field": "part"}},
    }
    alone = [row for row in rows if sum(other["part"] == row["part"] for other in rows) == 1]  # a line needs two
    dots: Spec = {
        "data": values(alone),
        "mark": {"type": "point", "filled": True, "size": 20, "opacity": 1, "clip": True, "aria": False},
        "encoding": {"x": x, "y": y, "color": shade},
    }
    return [line, *([dots] if alone else []), point]
