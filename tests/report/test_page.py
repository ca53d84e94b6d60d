"""The files of a report: complete, self-contained, small enough, and sensible for every kind of run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from report.made_up import made_up_run, residual_outline

import gator
from gator import zoo
from gator.errors import MissingExtraError, RunError
from gator.graph.outline import outline_of
from gator.report.front_charts import front_charts
from gator.report.graph_picture import graph_picture, placed
from gator.report.name_axis import stages_of
from gator.report.numbers import compact, duration, percent
from gator.report.paper_points import paper_points
from gator.report.read_run import read_run
from gator.report.write import figures_folder, write_graph, write_report
from gator.training.recipe_file import read_recipe

pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")


def test_numbers_are_short() -> None:
    assert [compact(value) for value in (7, 999, 1000, 1_254_928, 2_521_056_000)] == ["7", "999", "1 k", "1.25 M", "2.52 G"]
    assert [percent(share) for share in (0.4985, 0.07, 1.0, 1.2)] == [f"{text}\u00a0%" for text in ("49.9", "7", "100", "120")]
    assert [duration(seconds) for seconds in (38.2, 127, 4000)] == ["38 s", "2 min 7 s", "1 h 6 min"]


def test_edges_that_overlap_have_columns_of_their_own() -> None:
    outline = residual_outline(3, 9)
    edges = placed(outline)
    for one in edges:
        for two in edges:
            apart = one.rows[-1] < two.rows[0] or two.rows[-1] < one.rows[0]
            assert one is two or apart or one.column != two.column
    assert {each.column for each in edges if not each.edge.highway} == {0}
    assert graph_picture(outline).count('<g class="edge') == len(outline.edges)


def test_stages_are_the_leading_parts_of_names() -> None:
    assert stages_of(["stem", "a.0.x", "a.1.x", "b.0.x", "head"]) == {0: "stem", 1: "a.0", 2: "a.1", 3: "b.0", 4: "head"}
    names = [f"layer{stage}.{block}.conv" for stage in (1, 2) for block in range(20)]
    assert stages_of(names) == {0: "layer1", 20: "layer2"}


def test_the_papers_points_come_with_its_own_experiments_alone() -> None:
    flops = paper_points(read_recipe("cifar10-resnet56-flops"))
    assert [(point.alpha, point.accuracy) for point in flops if "table 4" in point.source] == [
        (1, 93.58),
        (2, 93.14),
        (16, 91.5),
    ]
    assert {point.series for point in paper_points(read_recipe("cifar10-resnet56-memory"))} == {"memory"}
    latency = paper_points(read_recipe("imagenet-resnet50-latency"))
    assert (0.5, 75.28) in [(point.alpha, point.accuracy) for point in latency]
    assert paper_points(read_recipe("digits")) == ()


@pytest.mark.slow
def test_fronts_compare_accuracies_only_where_that_makes_sense(tmp_path: Path) -> None:
    one = read_run(made_up_run(tmp_path / "one", residual_outline(3, 9), rounds=3))
    two = read_run(made_up_run(tmp_path / "two", residual_outline(2, 2), recipe="cifar10-resnet56-flops", rounds=2, top=93.6))
    same = front_charts([one])
    assert [figure.file for figure in same] == ["front-macs", "front-latency-eager", "front-latency-onnxruntime"]
    both = front_charts([one, two])
    assert "differences from each dense network" in both[0].caption
    assert "Grey diamonds" not in both[0].caption
    assert "Grey diamonds" in front_charts([two])[0].caption
    unfinished = read_run(made_up_run(tmp_path / "three", residual_outline(2, 2), stop_in=0))
    assert front_charts([unfinished]) == []


@pytest.mark.slow
def test_a_report_is_one_file_and_its_figures(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path / "run", residual_outline(2, 6), rounds=2)
    path = write_report([folder])
    assert path == folder / "report.html"
    html = path.read_text()
    for expected in (
        "Accuracy against cost", "Gates over time", "Width of every edge", "Blocks that are gone",
        "Which layers depend on each other", "gator prune", "torch 2.13", "100 made-up examples", "<code>layer",
    ):  # fmt: skip
        assert expected in html, expected
    assert "nothing from elsewhere" in html
    visible = re.sub(r"<script>.*?</script>", "", html, flags=re.S)
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", visible)
    assert "@import" not in html
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', html, re.S).group(1))  # type: ignore[union-attr]
    assert "accuracy" in charts
    files = {file.name for file in figures_folder(path).iterdir()}
    assert {f"{name}.{kind}" for name in [*charts, "graph"] for kind in ("svg", "png")} == files
    assert all("var(--" not in file.read_text() for file in figures_folder(path).glob("*.svg"))
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in figures_folder(path).glob("*.png"))


@pytest.mark.slow
def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path / "run", residual_outline(2, 2), changes=("name=<b>x",))
    data = json.loads((folder / "graph.json").read_text().replace("layer1.1.conv1", "</script><i>"))
    (folder / "graph.json").write_text(json.dumps(data))
    html = write_report([folder]).read_text()
    assert "<b>x" not in html
    assert "</script><i>" not in html


@pytest.mark.slow
def test_several_runs_are_compared_and_an_unfinished_one_is_marked(tmp_path: Path) -> None:
    one = made_up_run(tmp_path / "one", residual_outline(2, 2))
    two = made_up_run(tmp_path / "two", residual_outline(3, 3), recipe="cifar10-resnet56-flops", stop_in=0, top=93.6)
    html = write_report([one, two], out=tmp_path / "both.html").read_text()
    assert "2 runs, of different networks or data." in html
    assert "not finished" in html
    assert f"gator prune --resume {two}" in html
    assert html.count('<article id="run-') == 2


@pytest.mark.slow
def test_a_run_without_any_epoch_has_a_report(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path / "run", residual_outline(2, 2), stop_in=0)
    for name in ("metrics.jsonl", "networks.jsonl"):
        (folder / name).write_text("")
    (folder / "graph.json").unlink()
    html = write_report([folder]).read_text()
    assert "so far it has completed no epoch" in html


@pytest.mark.slow
def test_200_edges_and_300_epochs_stay_below_3_megabytes(tmp_path: Path) -> None:
    outline = residual_outline(4, 49)
    assert len(outline.edges) == 200
    path = write_report([made_up_run(tmp_path / "run", outline, train=100, prune=100, finetune=100)])
    assert path.stat().st_size < 3_000_000


@pytest.mark.slow
def test_the_graph_of_a_network_as_a_page(tmp_path: Path) -> None:
    network = zoo.build("cifar:resnet56")
    graph = gator.trace(network.model, network.example_inputs)
    outline = outline_of(graph)
    assert [edge.name for edge in outline.edges if edge.highway] == ["conv1", "layer2.0.conv2", "layer3.0.conv2"]
    assert outline.layers[:3] == ("conv1", "layer1.0.conv1", "layer1.0.conv2")
    html = write_graph(graph, "cifar:resnet56", tmp_path / "net.html").read_text()
    assert "30 edges" in html
    assert html.count('<g class="edge') == 30
    assert (tmp_path / "net-figures" / "graph.png").is_file()


def test_errors_come_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        write_report([tmp_path])
    with pytest.raises(RunError, match="at least one run folder"):
        write_report([])
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(MissingExtraError, match=r"torch-gator\[report\]"):
        write_report([tmp_path])
