"""The README tells the truth: its Python runs, its commands exist, and the example prints what it shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TARGETS = sorted(set(re.findall(r"(?:^|`)make (\w+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.M)))
COMMANDS = re.findall(r"^gator (inspect cifar.*)$", README, re.M)


def python(*args: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *args], cwd=folder, capture_output=True, text=True, check=False)


def test_the_python_runs_as_it_stands(tmp_path) -> None:
    code, _ = re.findall(r"```python\n(.*?)```", README, re.S)
    result = python("-W", "error", "-c", code, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("30\nconv1 16\n('conv1', 'layer1.0.conv2')\n")
    assert (tmp_path / "small.safetensors").exists()


def test_the_training_loop_runs_as_it_stands(tmp_path) -> None:
    _, code = re.findall(r"```python\n(.*?)```", README, re.S)
    result = python("-W", "error", "-c", code, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "target 20.28 MMACs, met" in result.stdout


def test_the_example_prints_the_table_that_is_shown(tmp_path) -> None:
    """Times differ from run to run; everything else is the same to the letter."""
    (shown,) = re.findall(r"halve_resnet56.py -->\n```text\n(.*?)```", README, re.S)
    result = python(str(ROOT / "examples" / "halve_resnet56.py"), folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert _without_times(result.stdout) == _without_times(shown)


def _without_times(text: str) -> list[str]:
    lines = [re.sub(r"in [\d.]+ s; masked against cut: .*", "in T", line) for line in text.strip().splitlines()]
    return [line for line in lines if not line.startswith("latency_ms")]


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
