"""`gator inspect` as a person types it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import gator
from gator.cli import main


def command(*args: str) -> subprocess.CompletedProcess:
    code = "from gator.cli.main import app; app()"
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)


def in_this_process(*args: str) -> str:
    """The same without starting another Python."""
    return CliRunner().invoke(main.commands(), list(args), catch_exceptions=False).stdout


def test_table_json_and_explanation() -> None:
    result = command("inspect", "cifar:resnet20")
    assert result.returncode == 0
    assert "12 edges, 400 units" in result.stdout
    printed = in_this_process("inspect", "cifar:resnet20", "--json", "--fixed", "layer3")
    assert len(gator.SavedGraph.from_json(printed).edges) < 12
    assert json.loads(printed)["fixed"] == ["layer3"]
    assert "tied by" in in_this_process("inspect", "cifar:resnet20", "--explain", "layer1.0.conv1")
    assert "162,202,240 MACs" in in_this_process("inspect", "cifar:resnet20", "--input", "1,3,64,64")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("inspect", "cifar:resnet21"), "did you mean resnet"),
        pytest.param(("inspect", "cifar:resnet20", "--input", "1,3"), "could not be recorded", marks=pytest.mark.slow),
        (("inspect", "cifar:resnet20", "--input", "a"), "is not a shape"),
        pytest.param(("inspect", "cifar:resnet20", "--input", "0,3,32,32"), "at least 1", marks=pytest.mark.slow),
        pytest.param(("inspect", "cifar:resnet20", "--heads", "none"), "heads='none'", marks=pytest.mark.slow),
        pytest.param(
            ("inspect", "cifar:resnet20", "--explain", "nothing"), "no edge, layer or parameter", marks=pytest.mark.slow
        ),
    ],
)
def test_errors_are_one_message_and_exit_code_2(args: tuple, words: str) -> None:
    result = command(*args)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_version_and_help() -> None:
    assert command("--version").stdout.strip() == gator.__version__
    assert "inspect" in command("--help").stdout


def test_without_typer_the_extra_is_named(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as stopped:
        main.app()
    assert stopped.value.code == 2
    assert "pip install 'torch-gator[cli]'" in capsys.readouterr().err
