"""The page: figures, tables and texts put into one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import gator
from gator.extras import optional_import
from gator.graph.hypergraph import Hypergraph
from gator.graph.outline import Outline, outline_of
from gator.report import headline, numbers
from gator.report.figure import Figure
from gator.report.front_charts import front_charts, same_accuracy
from gator.report.graph_picture import graph_picture
from gator.report.progress_charts import progress_charts
from gator.report.render import page_svg, vega
from gator.report.run_content import EdgeFacts, RunContent, run_labels
from gator.report.width_charts import cost_charts, gates_chart, width_chart


@dataclass(frozen=True)
class Page:
    """The HTML text, and the figures on it, for files of their own."""

    html: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class RunSection:
    """A run with its figures, as the template reads it."""

    id: str  # of its headings and figures on the page
    label: str  # among the other runs
    run: RunContent
    tiles: list[headline.Tile]
    sentence: str
    rows: list[headline.Row]
    progress: list[Figure]
    gates: Figure | None
    widths: Figure | None
    costs: list[Figure]
    graph: Figure | None

    @property
    def figures(self) -> list[Figure]:
        one = [figure for figure in (self.gates, self.widths) if figure is not None]
        return [*self.progress, *one, *self.costs, *([self.graph] if self.graph else [])]


def report_page(runs: Sequence[RunContent]) -> Page:
    """The report of one run or several; with several, first a comparison, then a section for each."""
    labels = run_labels(runs)
    sections = [
        _section(run, label, f"{index}-" if len(runs) > 1 else "")
        for index, (run, label) in enumerate(zip(runs, labels, strict=True), start=1)
    ]
    fronts = front_charts(runs)
    figures = [*fronts, *(figure for section in sections for figure in section.figures)]
    title = ", ".join(labels)
    html = _rendered(
        "report.html", figures, title=title, sections=sections, fronts=fronts, comparable=same_accuracy(runs),
        several=len(runs) > 1,
    )  # fmt: skip
    return Page(html, tuple(figures))


def graph_page(graph: Hypergraph, name: str) -> Page:
    """The hypergraph of a network before pruning."""
    outline = outline_of(graph)
    macs = {edge.name: edge.macs for edge in graph.edges}
    edges = tuple(
        EdgeFacts(edge.name, edge.width, None, edge.producers, edge.consumers, edge.highway, macs[edge.name], None)
        for edge in outline.edges
    )
    widths, picture = width_chart(edges), _picture(outline, None, "")
    figures = [figure for figure in (widths, picture) if figure is not None]
    html = _rendered("graph.html", figures, title=name, graph=graph, edges=edges, widths=widths, picture=picture)
    return Page(html, tuple(figures))


def _section(run: RunContent, label: str, prefix: str) -> RunSection:
    def own(figure: Figure | None) -> Figure | None:
        return None if figure is None else replace(figure, file=f"{prefix}{figure.file}")

    dense, result = run.dense, run.result
    widths = None if result is None else {edge.name: edge.after or 0 for edge in run.edges}
    return RunSection(
        id=prefix,
        label=label,
        run=run,
        tiles=headline.tiles(run),
        sentence=headline.sentence(run),
        rows=headline.rows(dense, result) if dense is not None and result is not None else [],
        progress=[replace(figure, file=f"{prefix}{figure.file}") for figure in progress_charts(run)],
        gates=own(gates_chart(run)),
        widths=own(width_chart(run.edges)),
        costs=[replace(figure, file=f"{prefix}{figure.file}") for figure in cost_charts(run)],
        graph=None if run.outline is None else _picture(run.outline, widths, prefix),
    )


def _picture(outline: Outline, widths: dict[str, int] | None, prefix: str) -> Figure | None:
    if not outline.edges:
        return None
    return Figure(
        f"{prefix}graph",
        "Which layers depend on each other",
        "Layers in the order of the network. Every vertical line is an edge: channels that are kept or removed in all of its "
        "layers at once. Filled: the layer writes them. Open: the layer reads them."
        + (" Thick: a highway, whose layers additions tie together." if any(edge.highway for edge in outline.edges) else "")
        + (" Dotted: no channel is left." if widths and 0 in widths.values() else ""),
        svg=graph_picture(outline, widths),
    )


def _rendered(template: str, figures: Sequence[Figure], **content: Any) -> str:
    jinja = optional_import("jinja2", extra="report", purpose="a report")
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(str(_assets())), autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(
        compact=numbers.compact, percent=numbers.percent, milliseconds=numbers.milliseconds, points=numbers.points,
        duration=numbers.duration, runtime=numbers.runtime_name, cost=numbers.cost_name,
    )  # fmt: skip
    safe = jinja.utils.markupsafe.Markup
    charts = {figure.file: spec for figure in figures if (spec := vega(figure)) is not None}
    text: str = environment.get_template(template).render(
        version=gator.__version__,
        style=safe(_asset("report.css")),
        script=safe(_asset("report.js")),
        library=safe(_asset("vega/vega.min.js")),
        charts=safe(_embedded(charts)),
        svg=lambda figure: safe(page_svg(figure)),
        embedded=lambda edges: safe(_embedded([asdict(edge) for edge in edges])),
        **content,
    )
    return text


def _embedded(data: Any) -> str:
    """JSON inside a script element, in which nothing can end the element."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _assets() -> Path:
    return Path(str(resources.files("gator.report") / "assets"))


def _asset(name: str) -> str:
    return (_assets() / name).read_text(encoding="utf-8")
