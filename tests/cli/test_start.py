"""The command line answers at once: nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import gator

ENTRY = "import sys; sys.argv[0] = 'gator'; from gator.cli.main import app\n"
HEAVY = ("torch", "numpy", "safetensors", "rich.progress")


def started(*args: str, after: str = "", **environment: str) -> subprocess.CompletedProcess:
    code = f"{ENTRY}try:\n    app()\nfinally:\n    {after or 'pass'}"
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("option", ["--version", "--help", "-h"])
def test_nothing_heavy_is_imported(option: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = started(option, after=f"print('loaded', [name for name in {HEAVY} if name in sys.modules])")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "loaded []" in done.stdout
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 1.0  # of processor time; a slow machine takes longer than 0.5 s, torch would take several seconds


def test_the_version_and_the_commands_are_said() -> None:
    assert started("--version").stdout == f"{gator.__version__}\n"
    said = started("-h").stdout
    for command in ("prune", "recipes", "init", "eval", "predict", "export", "inspect", "measure", "latency"):
        assert re.search(rf"\b{command}\b", said)


@pytest.mark.slow
def test_shell_completion() -> None:
    script = started("--show-completion", "bash")
    assert "_GATOR_COMPLETE" in script.stdout
    completed = started(_GATOR_COMPLETE="complete_bash", COMP_WORDS="gator prune cifar10-resnet20", COMP_CWORD="2")
    assert completed.stdout.split() == ["cifar10-resnet20-cpu"]


def test_the_names_that_are_loaded_late_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(gator.__file__).read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {name.name: imported.module for imported in checked.body for name in imported.names}
    assert seen == gator._HOME_OF
    assert sorted(seen) == sorted(gator.__all__)
    for name in gator.__all__:
        assert getattr(gator, name) is not None
    assert set(gator.__all__) <= set(dir(gator))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        gator.nothing
