"""A figure of the report: a Vega-Lite chart or a finished SVG, and the look that all charts share.

Colours are CSS variables, so that one drawing serves light and dark; a file of its own gets the light ones written in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # names the version of the format; nothing is loaded from there
WIDTH = 932  # of charts, where no browser knows the width of the page

INK, GREY, FAINT, LINE, ACCENT, PAPER = (f"var(--{name})" for name in ("ink", "grey", "faint", "line", "accent", "paper"))
LIGHT = {INK: "#1b1f23", GREY: "#5f6771", FAINT: "#cfd4da", LINE: "#e4e7eb", ACCENT: "#00745a", PAPER: "#ffffff"}

CONFIG: Spec = {
    "background": None,
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domain": False, "ticks": False, "grid": False, "gridColor": LINE, "labelColor": GREY, "titleColor": GREY,
        "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "labelPadding": 6,
    },
    "axisX": {"titleAnchor": "end", "titlePadding": 8, "labelSeparation": 8},
    "axisY": {"grid": True, "titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleY": -12, "titleX": 0},
    "title": {
        "anchor": "start", "color": INK, "fontSize": 15, "fontWeight": 600, "subtitleColor": GREY, "subtitleFontSize": 12,
        "subtitlePadding": 6, "offset": 18,
    },
    "text": {"fontSize": 11},
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One picture with its texts. `file` names the SVG and PNG files; `title` and `caption` go into them and on the page."""

    file: str
    title: str
    caption: str
    spec: Spec | None = None  # a Vega-Lite chart
    svg: str = ""  # or an SVG, in CSS variables as well
    summary: str = ""  # a sentence of what can be seen, for the page alone
    heading: str = ""  # a shorter title, where the section says the rest
    small: bool = False  # two stand side by side where there is room


def chart(layers: list[Spec], *, height: int, width: int = WIDTH, **rest: Any) -> Spec:
    """A chart of layers over each other in the common look."""
    return {
        "$schema": SCHEMA, "width": width, "height": height, "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 0, "right": 6, "top": 6, "bottom": 4}, "config": CONFIG, "layer": layers, **rest,
    }  # fmt: skip


def values(rows: list[dict[str, Any]]) -> Spec:
    return {"values": rows}
