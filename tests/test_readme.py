"""The README tells the truth: its Python runs, its commands exist, and the default run does what is shown."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TARGETS = sorted(set(re.findall(r"(?:^|`)make ([\w-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.M)))
CUTS = (ROOT / "docs" / "cuts.md").read_text()
COMMANDS = re.findall(r"^gator (inspect cifar.*)$", CUTS, re.M)


def python(*args: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *args], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.trains
def test_the_training_loop_runs_as_it_stands(tmp_path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    result = python("-W", "error", "-c", code, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "target 20.28 MMACs, reached" in result.stdout


@pytest.mark.slow
@pytest.mark.trains
def test_the_default_run_does_what_is_shown(tmp_path) -> None:
    """Half of the FLOPs, an accuracy as good as before or nearly so, a smaller file; latencies are for benchmarks to judge."""
    (shown,) = re.findall(r"output of gator prune -->\n```text\n(.*?)```", README, re.S)
    result = python("-W", "error", "-m", "gator", "prune", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == shown.splitlines()[-1] == "report: runs/digits/report.html"
    for text, margin in ((shown, 0.5), (result.stdout, 3.0)):  # another processor rounds differently and trains another network
        rows = re.findall(r"^(\w[\w ]*[\w%]) {2,}(\d.*)$", text[re.search("^target 0.5 ", text, re.M).start() :], re.M)
        table = {row: figures.split() for row, figures in rows}
        assert list(table) == ["accuracy %", "MACs", "FLOPs", "parameters", "bytes", "latency ms"]
        before, after, _ = map(float, table["accuracy %"])
        assert after >= before - margin
        assert before > 94
        assert float(table["FLOPs"][2]) <= 0.5
        assert float(table["bytes"][2]) < 0.6
    assert float(re.search(r"latency ms.* ([\d.]+)$", shown, re.M)[1]) < 1
    # Channels close epoch by epoch, and the network that would be cut works at any time.
    lines = map(json.loads, (tmp_path / "runs" / "digits" / "metrics.jsonl").read_text().splitlines())
    gated = [line for line in lines if line["phase"] == "prune"]
    assert sum(a["living"] > b["living"] for a, b in itertools.pairwise(gated)) > len(gated) / 2
    assert min(line["accuracy"] for line in gated) > 90
    assert gated[-1]["cost_left"] <= 0.5


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_run(command: str, tmp_path) -> None:
    result = python("-c", "from gator.cli.main import app; app()", *command.split(), folder=tmp_path)
    assert result.returncode == 0, result.stderr


def test_every_public_name_has_a_docstring() -> None:
    import gator

    for name in gator.__all__:
        assert getattr(gator, name).__doc__, name
