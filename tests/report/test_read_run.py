"""What a report shows, computed from run folders: made-up ones of every kind, and a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report.made_up import made_up_run, residual_outline
from training.small import short_recipe

import gator
from gator.errors import RunError
from gator.report.headline import rows, sentence, tiles
from gator.report.read_run import read_run
from gator.report.removed_blocks import removed_blocks
from gator.report.run_content import Span


def test_a_finished_run_of_three_rounds(tmp_path: Path) -> None:
    run = read_run(made_up_run(tmp_path / "run", residual_outline(3, 9), rounds=3))
    assert run.finished
    assert [network.name for network in run.rounds] == ["target 0.7", "target 0.49", "target 0.343"]
    assert run.result is run.rounds[2]
    assert run.spans[:3] == (Span("train", 0, 1, 3), Span("prune", 0, 4, 7), Span("finetune", 0, 8, 10))
    assert len(run.spans) == 7
    assert len(run.epochs) == 3 + 3 * 7
    assert {epoch.cost_left for epoch in run.epochs[:3]} == {1.0}
    assert {epoch.cost_left for epoch in run.epochs[-3:]} == {0.343}
    assert [edge.name for edge in run.edges if edge.highway] == ["stem", "layer2.0.conv2", "layer3.0.conv2"]
    assert run.edges[0].before == 16
    assert 0 < (run.edges[0].after or 0) < 16
    assert run.started_with == "gator prune digits"
    assert run.repeated_with == f"gator prune {tmp_path}/run/recipe.toml"


def test_the_headline_has_every_runtime_and_the_difference_of_accuracy(tmp_path: Path) -> None:
    run = read_run(made_up_run(tmp_path / "run", residual_outline(2, 2), runtimes=("onnxruntime", "openvino")))
    assert run.dense is not None
    assert run.result is not None
    table = {row.label: row for row in rows(run.dense, run.result)}
    assert list(table) == [
        "accuracy %", "MACs", "FLOPs", "parameters", "bytes", "latency ms, PyTorch", "latency ms, ONNX Runtime",
        "latency ms, OpenVINO",
    ]  # fmt: skip
    assert table["accuracy %"].ratio == "\u22120.30"
    assert table["latency ms, PyTorch"].before == "10.00"
    assert table["latency ms, PyTorch"].ratio == "0.790"
    assert table["MACs"].before == f"{run.dense.macs:,}"
    assert [tile.label for tile in tiles(run)] == ["Accuracy", "MACs left", "Parameters left", "Latency left"]
    assert "On PyTorch it takes 79\u00a0% of the time." in sentence(run)


def test_an_interrupted_run_shows_what_there_is(tmp_path: Path) -> None:
    run = read_run(made_up_run(tmp_path / "run", residual_outline(2, 2), rounds=3, stop_in=1))
    assert not run.finished
    assert sentence(run) == "This run is not finished: so far it has completed epoch 2 of 4 with gates, in round 2."
    assert len(run.rounds) == 1
    assert run.result is run.rounds[0]
    assert run.result.latency_ms == {}
    first = read_run(made_up_run(tmp_path / "first", residual_outline(2, 2), stop_in=0))
    assert first.result is None
    assert first.edges[0].after is None
    assert [tile.label for tile in tiles(first)][-1] == "Cost left"


def test_a_run_that_was_killed_while_writing_a_line_can_be_read(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path / "run", residual_outline(2, 2), stop_in=0)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "prune", "rou')
    assert len(read_run(folder).epochs) == 5


def test_a_resumed_run_writes_a_network_twice_and_the_last_line_counts(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path / "run", residual_outline(2, 2), rounds=2, stop_in=1)
    lines = (folder / "networks.jsonl").read_text().splitlines()
    again = json.loads(lines[-1])
    again["figures"]["accuracy"] = 50.0
    (folder / "networks.jsonl").write_text("\n".join([*lines, json.dumps(again)]) + "\n")
    assert [network.accuracy for network in read_run(folder).rounds] == [50.0]


def test_a_folder_without_the_newer_files_has_fewer_figures(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path / "run", residual_outline(2, 2))
    (folder / "networks.jsonl").unlink()
    (folder / "graph.json").unlink()
    run = read_run(folder)
    assert run.edges == run.layers == run.removed == ()
    assert run.result is not None


def test_a_folder_that_is_no_run_and_a_damaged_one_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run folder: it has no recipe\.toml"):
        read_run(tmp_path)
    folder = made_up_run(tmp_path / "run", residual_outline(2, 2))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(["nonsense", *lines[1:]]))
    with pytest.raises(RunError, match=r"damaged, or from another version of gator: line 1 of metrics\.jsonl is not JSON"):
        read_run(folder)


def test_removed_blocks_are_the_largest_modules_without_a_layer() -> None:
    layers = ["stem", "a.0.conv1", "a.0.conv2", "a.1.conv1", "a.1.conv2", "b.0", "head"]
    assert removed_blocks(layers, {"a.0.conv1", "a.0.conv2"}) == ("a.0",)
    assert removed_blocks(layers, {"a.0.conv1", "a.0.conv2", "a.1.conv1", "a.1.conv2", "b.0"}) == ("a", "b")
    assert removed_blocks(layers, {"a.1.conv2"}) == ("a.1.conv2",)
    assert removed_blocks(layers, set()) == ()


@pytest.mark.slow
@pytest.mark.trains
def test_what_is_read_agrees_with_what_a_real_run_returned(tmp_path: Path) -> None:
    result = gator.run(short_recipe("prune.targets=[0.7,0.4]", "prune.epochs=3", "data.batch=64"), folder=tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.dense is not None
    assert run.outline is not None
    assert (run.dense.accuracy, run.dense.macs) == (result.before.accuracy, result.before.macs)
    assert [network.macs for network in run.rounds] == [outcome.figures.macs for outcome in result.rounds]
    assert sum(layer.macs_before for layer in run.layers) == result.before.macs
    assert sum(layer.macs_after or 0 for layer in run.layers) == result.rounds[-1].figures.macs
    assert sum(layer.params_after or 0 for layer in run.layers) == result.rounds[-1].figures.params
    assert [edge.name for edge in run.edges if edge.highway] == ["stem", "blocks.2.conv2"]
    gated = [epoch for epoch in run.epochs if epoch.phase == "prune"]
    assert all(len(epoch.widths or ()) == len(run.edges) for epoch in gated)
    # The last epoch with gates of a round has the widths of the network that is cut after it.
    assert gated[-1].widths == tuple(edge.after for edge in run.edges)
    assert gated[2].widths == tuple(run.rounds[0].widths.values())
