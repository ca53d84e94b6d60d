"""`gator latency` and `gator measure` as a person types them, on a runtime without noise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import gator
from gator import zoo
from gator.cli import main

sys.path.insert(0, str(Path(__file__).parent.parent / "cost" / "latency"))

from fakes import CLOCK, Fake

from gator.cost.latency import runtime
from gator.cost.timing import timed

FACTORY = """
import torch
from fakes import Small
def make():
    torch.manual_seed(0)
    return Small(24, 16), torch.zeros(1, 3, 8, 8)
"""


@pytest.fixture
def typed(monkeypatch, tmp_path):
    monkeypatch.setitem(runtime.RUNTIMES, "fake", Fake())
    monkeypatch.setattr(timed, "__kwdefaults__", {**timed.__kwdefaults__, "clock": CLOCK})
    monkeypatch.setenv("GATOR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "net.py").write_text(FACTORY)

    def run(*args: str):
        words = [str(tmp_path / "net.py:make") if arg == "NET" else arg for arg in args]
        return CliRunner().invoke(main._commands(), words, catch_exceptions=True)

    return run


def test_build_show_check(typed) -> None:
    assert "no tables in" in typed("latency", "show").output
    built = typed("latency", "build", "NET", "--runtime", "fake", "--threads", "1", "--batch", "4")
    assert built.exit_code == 0, built.output
    assert "fitted to 16 networks" in built.output
    shown = typed("latency", "show", "--layers").output
    assert "steps of 8 channels" in shown
    assert "batch 4" in shown
    assert "conv2d 3x3 to 8x8 + relu" in shown
    result = typed("latency", "check", "NET", "--runtime", "fake", "--threads", "1", "--batch", "4", "--networks", "5")
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) == 7
    assert "rank correlation 1.000" in result.output


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
