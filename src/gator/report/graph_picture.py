"""The hypergraph as a picture: layers are rows in the order of forward; an edge is a vertical line with a mark for each member.

Edges that do not overlap share a column, short ones next to the names, so the picture stays narrow. Each edge is one SVG group
that also holds the names of its members in the accent colour, shown while the edge is pointed at: that needs no JavaScript.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from gator.graph.outline import Outline, OutlineEdge
from gator.report.figure import ACCENT, GREY, INK, LINE, PAPER

_ROW, _MANY_ROWS = 18, 14  # pixels
_FEW = 80  # layers that get the larger rows
_LETTER = 6.65  # pixels of a monospaced letter at 11 px
_LONGEST = 34  # letters of a name


@dataclass(frozen=True)
class Placed:
    """An edge with its rows, as numbers of layers, and its column."""

    edge: OutlineEdge
    rows: tuple[int, ...]
    column: int


def placed(outline: Outline) -> tuple[Placed, ...]:
    """Every edge in the first column in which no other edge covers its rows; the shortest choose first."""
    number = {layer: index for index, layer in enumerate(outline.layers)}
    spans = [tuple(sorted(number[layer] for layer in edge.layers)) for edge in outline.edges]
    order = sorted(range(len(spans)), key=lambda index: (spans[index][-1] - spans[index][0], spans[index]))
    taken: list[list[tuple[int, int]]] = []
    columns = [0] * len(spans)
    for index in order:
        first, last = spans[index][0], spans[index][-1]
        free = (c for c, used in enumerate(taken) if all(last < start or first > end for start, end in used))
        columns[index] = next(free, len(taken))
        if columns[index] == len(taken):
            taken.append([])
        taken[columns[index]].append((first, last))
    return tuple(Placed(edge, rows, column) for edge, rows, column in zip(outline.edges, spans, columns, strict=True))


def graph_picture(outline: Outline, widths: dict[str, int] | None = None) -> str:
    """The picture as SVG, in CSS variables. `widths` are those after pruning; an edge with none left is dotted."""
    if not outline.edges:
        return ""
    edges = placed(outline)
    row = _ROW if len(outline.layers) <= _FEW else _MANY_ROWS
    shown = {layer: _short(layer) for layer in outline.layers}
    left = 8 + round(_LETTER * max(len(name) for name in shown.values())) + 14
    columns = 1 + max(each.column for each in edges)
    column = 24 if columns <= 6 else 18 if columns <= 15 else 13
    width = left + column * columns + 8
    top = 8
    height = top + row * len(outline.layers) + 8
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" {size} font-family="ui-monospace, monospace" font-size="11">'
    ]
    for index, layer in enumerate(outline.layers):
        y = top + row * index + row / 2
        parts.append(f'<path class="row" d="M0,{y + row / 2:g}H{width}" stroke="{LINE}"/>')
        parts.append(_name(shown[layer], left, y, GREY, f' class="layer" data-layer="{escape(layer)}"'))
    for index, each in enumerate(edges):
        parts.append(_group(index, each, outline, shown, (left, top, column, row), widths))
    return "\n".join([*parts, "</svg>"])


def _group(
    index: int,
    each: Placed,
    outline: Outline,
    shown: dict[str, str],
    layout: tuple[int, int, int, int],
    widths: dict[str, int] | None,
) -> str:
    edge = each.edge
    left, top, column, row = layout
    after = None if widths is None else widths.get(edge.name, edge.width)
    x = left + column * each.column + column / 2

    def y(number: int) -> float:
        return top + row * number + row / 2

    kind = " highway" if edge.highway else ""
    dots = ' stroke-dasharray="1 3"' if after == 0 else ""
    first, last = y(each.rows[0]), y(each.rows[-1])
    parts = [
        f'<g class="edge{kind}" data-edge="{index}" tabindex="0"><title>{escape(_words(edge, after))}</title>',
        f'<path class="hit" d="M{x:g},{first - row / 2:g}V{last + row / 2:g}" stroke="{PAPER}" stroke-opacity="0" '
        f'stroke-width="{column}"/>',
        f'<path class="line" d="M{x:g},{first:g}V{last:g}" stroke="{INK if edge.highway else GREY}" '
        f'stroke-width="{2.6 if edge.highway else 1.2}"{dots}/>',
    ]
    writes = set(edge.producers)
    for number in each.rows:
        layer = outline.layers[number]
        kind = "out" if layer in writes else "in"
        fill = (INK if edge.highway else GREY) if layer in writes else PAPER
        parts.append(
            f'<circle class="mark {kind}" cx="{x:g}" cy="{y(number):g}" r="3.4" fill="{fill}" '
            f'stroke="{INK if edge.highway else GREY}" stroke-width="1.2"/>'
        )
        parts.append(_name(shown[layer], left, y(number), ACCENT, ' class="lit"'))
    return "".join([*parts, "</g>"])


def _name(text: str, left: int, y: float, colour: str, attributes: str) -> str:
    return f'<text x="{left - 12}" y="{y + 4:g}" text-anchor="end" fill="{colour}"{attributes}>{escape(text)}</text>'


def _short(name: str) -> str:
    """The end of a long name, which says more than its beginning."""
    return name if len(name) <= _LONGEST else f"\u2026{name[-_LONGEST + 1 :]}"


def _words(edge: OutlineEdge, after: int | None) -> str:
    now = "" if after is None else f" \u2192 {after}"
    return (
        f"{edge.name}: {edge.width}{now} channels\nwritten by {', '.join(edge.producers)}\n"
        f"read by {', '.join(edge.consumers) or 'nothing'}"
    )
