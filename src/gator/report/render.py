"""Draw figures without a browser, with vl-convert: Vega-Lite to Vega (which the page draws live), to SVG and to PNG."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from html import escape
from types import ModuleType
from typing import Any

from gator.extras import optional_import
from gator.report.figure import GREY, INK, LIGHT, PAPER, Figure

_SCALE = 2  # of PNG files
_MARGIN, _LINE = 16, 17  # pixels around a file's figure, and between the lines of its caption
_LETTER = 6.4  # pixels of a letter of the caption


def converter() -> ModuleType:
    """vl-convert; a MissingExtraError names the extra."""
    return optional_import("vl_convert", extra="report", purpose="a report")


def vega(figure: Figure) -> dict[str, Any] | None:
    """The Vega chart of a figure, for the page; None for a picture that is SVG already."""
    if figure.spec is None:
        return None
    found: dict[str, Any] = json.loads(_compiled(json.dumps(figure.spec)))
    return found


def page_svg(figure: Figure) -> str:
    """The figure as SVG for the page: its colours are CSS variables of the page."""
    if figure.spec is None:
        return figure.svg
    return re.sub(r"\bclip(\d+)", rf"{figure.file}-clip\1", _drawn(json.dumps(figure.spec)))  # an id is unique on a page


def file_svg(figure: Figure) -> str:
    """The figure as an SVG of its own, with title and caption, in the light colours on white."""
    inner = re.sub(r'<text[^>]* class="lit">[^<]*</text>', "", page_svg(figure))  # names that only pointing shows
    width, height = (float(found) for found in re.findall(r'(?:width|height)="([\d.]+)"', inner)[:2])
    full = max(width, 430.0)
    caption = _lines(figure.caption, int(full / _LETTER))
    top = _MARGIN + 24 + _LINE * len(caption) + 14
    size = f"{full + 2 * _MARGIN:g}", f"{top + height + _MARGIN:g}"
    look = 'font-size="15" font-weight="bold"'
    texts = [f'<text x="{_MARGIN}" y="{_MARGIN + 14}" {look} fill="{INK}">{escape(figure.title)}</text>']
    for number, line in enumerate(caption):
        y = _MARGIN + 24 + _LINE * (number + 1)
        texts.append(f'<text x="{_MARGIN}" y="{y}" font-size="12" fill="{GREY}">{escape(line)}</text>')
    placed = inner.replace("<svg ", f'<svg x="{_MARGIN}" y="{top}" ', 1)
    return _light(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n' + "\n".join([*texts, placed]) + "\n</svg>\n"
    )


def png(svg: str) -> bytes:
    found: bytes = converter().svg_to_png(svg, scale=_SCALE)
    return found


@lru_cache(maxsize=64)
def _compiled(spec: str) -> str:
    found = converter().vegalite_to_vega(json.loads(spec))
    found.pop("$schema", None)
    return json.dumps(found)


@lru_cache(maxsize=64)
def _drawn(spec: str) -> str:
    svg: str = converter().vega_to_svg(json.loads(_compiled(spec)))
    return _shorter(svg)


def _light(svg: str) -> str:
    return re.sub(r"var\(--\w+\)", lambda found: LIGHT[found.group()], svg)


def _shorter(svg: str) -> str:
    """Without what a drawing with a caption does not need, and without digits below a hundredth of a pixel."""
    svg = re.sub(r' (role|aria-[a-z]+|xmlns:xlink|version)="[^"]*"', "", svg)
    svg = re.sub(r'<g class="[^"]*_voronoi">.*?</g>|<path[^>]* opacity="0"[^>]*/>', "", svg)  # for pointing at
    svg = re.sub(r'<path class="(background|foreground)" d="[^"]*"( pointer-events="none")?( display="none")?/>', "", svg)
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", svg)


def _lines(text: str, most: int) -> list[str]:
    found = [""]
    for word in text.split():
        if len(found[-1]) + len(word) >= most:
            found.append("")
        found[-1] = f"{found[-1]} {word}".strip()
    return found
