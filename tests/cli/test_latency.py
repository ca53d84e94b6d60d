"""`gator latency` and `gator measure` as a user types them, on a runtime without noise."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from training.small import set_options
from typer.testing import CliRunner

import gator
from gator import zoo
from gator.cli import main

sys.path.insert(0, str(Path(__file__).parent.parent / "cost" / "latency"))

from fakes import CLOCK, Fake

from gator.cost.latency.runtimes import by_name
from gator.cost.timing import timed

FAKE = Fake()
FACTORY = """
import torch
from fakes import Small
def make():
    torch.manual_seed(0)
    return Small(24, 16), torch.zeros(1, 3, 8, 8)
"""


@pytest.fixture
def typed(monkeypatch, tmp_path):
    monkeypatch.setitem(by_name.RUNTIMES, "fake", FAKE)
    monkeypatch.setattr(timed, "__kwdefaults__", timed.__kwdefaults__ | {"clock": CLOCK, "switches": CLOCK.switches})
    monkeypatch.setenv("GATOR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "net.py").write_text(FACTORY)

    def run(*args: str):
        words = [str(tmp_path / "net.py:make") if arg == "NET" else arg for arg in args]
        return CliRunner().invoke(main.commands(), words, catch_exceptions=True)

    return run


def test_build_show_check(typed) -> None:
    assert "no tables in" in typed("latency", "show").output
    built = typed("latency", "build", "NET", "--runtime", "fake", "--threads", "1", "--batch", "4")
    assert built.exit_code == 0, built.output
    assert re.search(r"Small on 3x8x8: .* ms; fitted to \d+ networks; mean error 0.0%", built.output)
    shown = typed("latency", "show", "--layers").output
    assert "steps of 8 channels" in shown
    assert "batch 4" in shown
    assert "conv2d 3x3 to 8x8 + relu" in shown
    result = typed("latency", "check", "NET", "--runtime", "fake", "--threads", "1", "--batch", "4", "--networks", "5")
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) == 7
    assert "rank correlation 1.000" in result.output
    other = typed("latency", "check", "NET", "--runtime", "fake", "--threads", "2", "--batch", "4", "--networks", "2")
    assert "timing" in other.output  # the progress bar of a table that is built


def test_show_goes_on_after_a_file_that_is_no_table(typed, tmp_path) -> None:
    typed("latency", "build", "NET", "--runtime", "fake", "--threads", "1")
    (tmp_path / "cache" / "latency" / "a.json").write_bytes(b"\xff")
    shown = typed("latency", "show")
    assert shown.exit_code == 0
    assert "cannot be read as a latency table" in shown.output
    assert "steps of 8 channels" in shown.output


def test_errors(typed) -> None:
    found = typed("latency", "build", "NET", "--runtime", "warp")
    assert isinstance(found.exception, gator.GatorError)
    assert "runtime='warp'" in str(found.exception)
    assert "expected 2 or more" in str(typed("latency", "check", "NET", "--runtime", "fake", "--networks", "1").exception)
    assert isinstance(typed("latency", "show", "nowhere.json").exception, gator.FileError)


def test_measure_beside_a_cut(typed, tmp_path) -> None:
    model = zoo.build(str(tmp_path / "net.py:make")).model
    graph = gator.trace(model, torch.zeros(1, 3, 8, 8))
    gator.save(gator.cut(model, graph, {graph.edges[0].name: range(8)}), tmp_path / "small.safetensors")
    result = typed("measure", "NET", "--against", str(tmp_path / "small.safetensors"), "--runtime", "fake", "--threads", "1")
    assert result.exit_code == 0, result.output
    assert "takes 0." in result.output
    assert result.output.count("where the time of") == 2
    assert "everything" in result.output


def test_measure_against_itself_and_what_is_wrong(typed) -> None:
    result = typed("measure", "NET", "--against", "NET", "--runtime", "fake", "--threads", "1", "--batch", "4")
    assert result.exit_code == 0, result.output
    assert "takes 1.000 of the time" in result.output
    assert result.output.startswith("fake, cpu, 1 thread, float32, batch 4 of 3x8x8\n")
    assert "--rounds 0; expected 1 or more" in str(typed("measure", "NET", "--rounds", "0").exception)
    assert "takes other inputs" in str(typed("measure", "NET", "--against", "cifar:resnet20").exception)


class TestPrune:
    """A run whose cost is a latency, measured on a runtime without noise in the place of PyTorch."""

    @pytest.fixture(autouse=True)
    def _fake_eager(self, monkeypatch) -> None:
        monkeypatch.setitem(by_name.RUNTIMES, "eager", FAKE)

    def run(self, typed, tmp_path, *args: str):
        changes = "train.epochs=0", "latency.threads=1", "prune.round_to=auto"
        return typed(
            "prune", "--cost", "latency", "--runtime", "eager", *args, *set_options(*changes), "--out", str(tmp_path / "run")
        )

    @pytest.mark.trains
    @pytest.mark.parametrize("budget", ["share", "ms"])
    def test_the_budget_is_met_by_what_is_measured(self, typed, tmp_path, budget) -> None:
        model = zoo.build("digits:resnet").model
        whole = FAKE.ms(model, ((torch.zeros(2, 1, 8, 8),), {}))
        result = self.run(typed, tmp_path, "--target", "0.6" if budget == "share" else f"{0.6 * whole:.4f} ms")
        assert result.exit_code == 0, result.output
        found = json.loads((tmp_path / "run" / "result.json").read_text())
        after = found["rounds"][0]["figures"]["latency_ms"]
        assert "latency table: " in result.output
        assert found["before"]["latency_ms"] == pytest.approx(whole)
        assert 0.9 * 0.6 * whole <= after <= 0.6 * whole
        assert found["timed_under"] == "eager, cpu, 1 thread, float32, channels last, batch 2 of 1x8x8"
        small = gator.load(tmp_path / "run" / "round-1.safetensors", model)
        assert FAKE.ms(small, ((torch.zeros(2, 1, 8, 8),), {})) == pytest.approx(after)

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (("--target", "1 us"), r"target of 0.001 ms cannot be reached: the smallest network"),
            (("--target", "4 MB"), "is given in bytes, but the cost is counted in ms"),
            (("--target", "0.6", "--runtime", "warp"), "latency.runtime = 'warp'; expected 'eager'"),
            (
                ("--target", "0.6", "--set", "latency.table=none.json", "--set", "latency.other_device=true"),
                "there is no latency table at none.json",
            ),
        ],
    )
    def test_what_cannot_be_is_said_before_training(self, typed, tmp_path, args, words) -> None:
        result = self.run(typed, tmp_path, *args)
        assert isinstance(result.exception, gator.GatorError)
        assert re.search(words, str(result.exception))
        assert not (tmp_path / "run").exists()
