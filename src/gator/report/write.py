"""`write_report` and `write_graph`: the HTML file, and beside it a folder with every figure as SVG and PNG."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gator.atomic_file import write_atomically
from gator.errors import RunError
from gator.graph.hypergraph import Hypergraph
from gator.report.page import Page, graph_page, report_page
from gator.report.read_run import read_run
from gator.report.render import converter, file_svg, png

NAME = "report.html"


def write_report(folders: Sequence[str | os.PathLike[str]], *, out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of one or several runs: one HTML file that needs nothing else, and beside it its figures as SVG and PNG.

    folders: run folders; a run may be unfinished.
    out: the file to write, or a folder for report.html; by default the run folder, or the working directory for several runs.

    Returns the path of the file. Raises RunError for a folder that is not a run folder, and MissingExtraError without the
    packages of the extra "report".
    """
    if not folders:
        raise RunError("name at least one run folder")
    converter()  # raise before any work
    runs = [read_run(Path(folder)) for folder in folders]
    where = Path(out) if out is not None else Path(folders[0]) if len(runs) == 1 else Path()
    return _written(report_page(runs), _file(where))


def write_graph(graph: Hypergraph, name: str, out: str | os.PathLike[str]) -> Path:
    """Write the hypergraph of a network as an HTML page, and its figures as SVG and PNG beside it."""
    converter()
    return _written(graph_page(graph, name), _file(Path(out)))


def _file(where: Path) -> Path:
    return where / NAME if where.is_dir() else where


def figures_folder(report: Path) -> Path:
    """Where the figures of a report are."""
    return report.with_name(f"{report.stem}-figures")


def _written(page: Page, where: Path) -> Path:
    folder = figures_folder(where)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in page.figures:
            svg = file_svg(figure)
            (folder / f"{figure.file}.svg").write_text(svg, encoding="utf-8")
            (folder / f"{figure.file}.png").write_bytes(png(svg))
        write_atomically(where, lambda temporary: temporary.write_text(page.html, encoding="utf-8"))
    except OSError as error:
        raise RunError(f"the report cannot be written to {where}: {error}") from error
    return where
