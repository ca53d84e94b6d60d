"""Ctrl-C ends a command with a message, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from training.small import set_options

pytestmark = pytest.mark.slow
# A shell starts a background job with SIGINT ignored, and its children inherit that.
ENTRY = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "gator"
from gator.cli.main import app
app()
"""


def interrupted(*args: str, folder: Path, when: Callable[[], bool]) -> tuple[int, str, str]:
    """Start a command, press Ctrl-C once `when` holds, and return its exit code and what it printed."""
    environment = {**os.environ, "GATOR_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", ENTRY, *args]
    with (folder / "out.txt").open("w") as out, (folder / "err.txt").open("w") as err:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=err)
        try:
            deadline = time.monotonic() + 300
            while not when() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=300)
        finally:
            process.kill()
            process.wait()
    return code, (folder / "out.txt").read_text(), (folder / "err.txt").read_text()


def test_while_a_table_is_built(tmp_path) -> None:
    cache = tmp_path / "cache"
    code, _, said = interrupted(
        "latency", "build", "digits:resnet", folder=tmp_path, when=lambda: bool(list(cache.rglob("*.json")))
    )
    assert code == 130
    assert "gator: stopped while a latency table was being built; what has been timed is kept in" in said
    assert "the same command continues from there" in said.replace("\n", " ")
    assert "Traceback" not in said


def test_while_a_run_builds_its_table(tmp_path) -> None:
    cache = tmp_path / "cache"
    options = set_options("train.epochs=0", "prune.cost=latency")
    code, _, said = interrupted("prune", "digits", *options, folder=tmp_path, when=lambda: bool(list(cache.rglob("*.json"))))
    assert code == 2
    assert "stopped while a latency table was being built" in said
    assert "the run had not begun, and nothing was written" in said
    assert not (tmp_path / "runs").exists()


def test_in_a_run(tmp_path) -> None:
    options = set_options("train.epochs=500")
    metrics = tmp_path / "runs" / "digits" / "metrics.jsonl"
    code, out, said = interrupted(
        "prune", "digits", *options, folder=tmp_path, when=lambda: metrics.is_file() and metrics.stat().st_size > 0
    )
    assert code == 2
    assert "stopping after this step; press Ctrl-C again to stop at once" in out
    assert "gator: stopped; the checkpoint is" in said
