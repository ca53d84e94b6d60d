"""The width of every edge, the cost of every layer, before and after, and the living channels of every edge over time."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from gator.report.figure import ACCENT, FAINT, INK, Figure, Spec, chart, values
from gator.report.name_axis import MOST_NAMES, name_axis, stages_of
from gator.report.numbers import compact, percent
from gator.report.run_content import EdgeFacts, LayerFacts, RunContent

_OPAQUE = {"color": INK, "opacity": 1, "aria": False}
_UNEVEN = 12  # the widest edge over the narrowest: above this the small ones need a scale that shows them
_MANY = 200  # bars between which a gap would be less than a pixel
_FEW = 9  # bars that have room even on a telephone
_NOTABLE = 0.25  # share of the cost in three layers that is worth a sentence
_STEPS = 20  # of the share of living channels that the eye is shown: fewer rectangles, same picture


def width_chart(edges: tuple[EdgeFacts, ...], *, title: str = "Width of every edge") -> Figure | None:
    """Grey the width before, green after; a square above marks a highway."""
    if not edges:
        return None
    pruned = edges[0].after is not None
    rows = [
        {"edge": e.name, "before": e.before, "after": e.after, "highway": e.highway, "kept": _share(e.after, e.before)}
        for e in edges
    ]
    uneven = max(e.before for e in edges) > _UNEVEN * min(e.before for e in edges)
    y = {
        "type": "quantitative", "title": "channels" + (" (square-root scale)" if uneven else ""),
        "scale": {"type": "sqrt"} if uneven else {}, "axis": {"tickCount": 5, "minExtent": 40},
    }  # fmt: skip
    tooltip = [_tip("edge"), _tip("before"), *([_tip("after"), _tip("kept", ".0%")] if pruned else [])]
    layers = [
        _bars(rows, "edge", "before", y, FAINT if pruned else ACCENT, tooltip),
        *([_bars(rows, "edge", "after", y, ACCENT, tooltip)] if pruned else []),
        {
            "data": values([row for row in rows if row["highway"]]),
            "mark": {"type": "point", "shape": "square", "size": 26, "yOffset": -7, "filled": True, **_OPAQUE},
            "encoding": {"x": {"field": "edge", "type": "nominal"}, "y": {"field": "before", **y}},
        },
    ]
    x = {"field": "edge", "type": "nominal", "sort": None, "title": None, "axis": name_axis([e.name for e in edges])}
    parts = "Grey: channels before. Green: after." if pruned else "The channels of every edge."
    highways = any(edge.highway for edge in edges)
    caption = f"{parts} Edges in the order of the network."
    caption += " A square marks a highway: layers that additions tie together." if highways else ""
    return Figure("widths", title, caption, chart(layers, height=240, encoding={"x": x}))


def cost_charts(run: RunContent) -> list[Figure]:
    """Multiply-adds and parameters of every layer before and after; empty for a folder without them."""
    return [
        figure
        for figure in (
            _cost_chart(run, "macs", "Multiply-adds of every layer", "MACs"),
            _cost_chart(run, "params", "Parameters of every layer", "parameters"),
        )
        if figure is not None
    ]


def _cost_chart(run: RunContent, key: str, title: str, unit: str) -> Figure | None:
    layers = [layer for layer in run.layers if getattr(layer, f"{key}_before") and layer.macs_before]
    if not layers:
        return None
    pruned = layers[0].macs_after is not None
    rows = [
        {
            "layer": layer.name, "before": getattr(layer, f"{key}_before"), "after": getattr(layer, f"{key}_after"),
            "kept": _share(getattr(layer, f"{key}_after"), getattr(layer, f"{key}_before")),
        }
        for layer in layers
    ]  # fmt: skip
    y = {"type": "quantitative", "title": unit, "axis": {"tickCount": 4, "format": "~s", "minExtent": 40}}
    tooltip = [_tip("layer"), _tip("before", ","), *([_tip("after", ","), _tip("kept", ".0%")] if pruned else [])]
    drawn = [_bars(rows, "layer", "before", y, FAINT if pruned else ACCENT, tooltip)]
    if pruned:
        drawn.append(_bars(rows, "layer", "after", y, ACCENT, tooltip))
    x = {"field": "layer", "type": "nominal", "sort": None, "title": None, "axis": name_axis([layer.name for layer in layers])}
    parts = "Grey: before. Green: after." if pruned else ""
    return Figure(
        f"layers-{key}",
        title,
        f"{parts} Layers in the order of the network.".strip(),
        chart(drawn, height=200, encoding={"x": x}),
        summary=_where(run.layers, key, unit) if pruned else "",
    )


def _where(layers: tuple[LayerFacts, ...], key: str, unit: str) -> str:
    """A sentence about the layers that hold most of what is left."""
    left = {layer.name: getattr(layer, f"{key}_after") for layer in layers}
    total = sum(left.values())
    if not total:
        return ""
    most = sorted(left, key=lambda name: -left[name])[:3]
    share = sum(left[name] for name in most) / total
    if share < _NOTABLE:  # many small layers: the largest stage says more
        names = list(left)
        starts = stages_of(names)
        ends = [*list(starts)[1:], len(names)]
        parts = {starts[i]: sum(left[name] for name in names[i:end]) for i, end in zip(starts, ends, strict=True)}
        most = [max(parts, key=lambda name: parts[name])]
        share = parts[most[0]] / total
    return f"{compact(total)} {unit} are left; {percent(share)} of them in {', '.join(most)}."


def gates_chart(run: RunContent) -> Figure | None:
    """Living channels of every edge over the epochs with gates: the fainter, the fewer."""
    epochs = [epoch for epoch in run.epochs if epoch.widths is not None]
    if not epochs or not run.edges or any(len(epoch.widths or ()) != len(run.edges) for epoch in epochs):
        return None
    rows = []
    for index, edge in enumerate(run.edges):
        levels = [round(_STEPS * (epoch.widths or ())[index] / max(edge.before, 1)) for epoch in epochs]
        numbered = enumerate(levels)
        for level, group in groupby(numbered, key=lambda item: item[1]):
            members = [number for number, _ in group]
            if level:  # nothing is drawn where nothing is left
                rows.append({"edge": edge.name, "from": members[0], "to": members[-1] + 1, "living": level / _STEPS})
    names = [edge.name for edge in run.edges]
    height = round(min(18.0, max(3.0, 420 / len(names))) * len(names))
    y = {
        "field": "edge", "type": "nominal", "sort": names, "title": None, "scale": {"domain": names, "paddingInner": 0.12},
        "axis": {**name_axis(names, vertical=True), "grid": False},
    }  # fmt: skip
    if len(names) > MOST_NAMES:
        y["scale"] = {"domain": names, "paddingInner": 0}
    x = {
        "field": "from", "type": "quantitative", "title": "epochs with gates", "scale": {"domain": [0, len(epochs)]},
        "axis": {"tickMinStep": 1, "format": "d", "tickCount": 8},
    }  # fmt: skip
    cells: Spec = {
        "data": values(rows),
        "mark": {"type": "rect", "fill": ACCENT, "aria": False},
        "encoding": {
            "x": x, "x2": {"field": "to"}, "y": y,
            "fillOpacity": {
                "field": "living", "type": "quantitative", "legend": None, "scale": {"domain": [0, 1], "range": [0.04, 1]},
            },
            "tooltip": [_tip("edge"), {**_tip("living", ".0%"), "title": "living (to 5 %)"}],
        },
    }  # fmt: skip
    borders = [i for i in range(1, len(epochs)) if epochs[i].round != epochs[i - 1].round]
    lines: Spec = {
        "data": values([{"at": at} for at in borders]),
        "mark": {"type": "rule", "stroke": INK, "strokeWidth": 1, "aria": False},
        "encoding": {"x": {"field": "at", "type": "quantitative"}},
    }
    rounds = " A vertical line begins a new round." if borders else ""
    return Figure(
        "gates",
        "Gates over time",
        f"Every row is an edge: the fainter, the fewer of its channels are living; blank, none is left.{rounds}",
        chart([cells, *([lines] if borders else [])], height=height),
    )


def _bars(rows: list[dict[str, Any]], name: str, field: str, y: Spec, colour: str, tooltip: list[Spec]) -> Spec:
    return {
        "data": values(rows),
        "mark": {"type": "bar", "color": colour, "aria": False, "width": _bar_width(len(rows))},
        "encoding": {
            "x": {"field": name, "type": "nominal"}, "y": {"field": field, **y, "stack": None}, "tooltip": tooltip,
        },
    }  # fmt: skip


def _bar_width(count: int) -> Any:
    """Bars fill the chart, but a few of them stay slim."""
    return 26 if count <= _FEW else {"band": 0.8 if count <= MOST_NAMES else 0.94 if count <= _MANY else 1}


def _tip(field: str, form: str = "") -> Spec:
    return {"field": field, "type": "quantitative", "format": form} if form else {"field": field, "type": "nominal"}


def _share(after: int | None, before: int) -> float | None:
    return None if after is None or not before else round(after / before, 4)
