"""A file is written completely or not at all, with the mode that the umask gives."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

import gator
from gator.atomic_file import write_atomically
from gator.training.checkpoint import State, write_checkpoint


@pytest.fixture(params=[0o022, 0o027, 0o077, 0o002], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="file modes are those of POSIX")
def test_the_mode_follows_the_umask(umask, tmp_path) -> None:
    write_atomically(tmp_path / "note.txt", lambda temporary: temporary.write_text("hello"))
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    graph = gator.trace(model, torch.zeros(1, 3))
    gator.save(gator.cut(model, graph, {"0": [0, 1]}), tmp_path / "small.safetensors")
    write_checkpoint(tmp_path, 1, State({"a": torch.zeros(2)}, {}))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(["note.txt", "small.safetensors", "step-000000001.safetensors"], 0o666 & ~umask)


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), SafetensorError("no"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_content(problem, tmp_path) -> None:
    target = tmp_path / "note.txt"
    target.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half of the new")
        raise problem

    with pytest.raises(gator.FileError if isinstance(problem, OSError) else type(problem)) as error:
        write_atomically(target, fail)
    if isinstance(problem, OSError):
        assert str(error.value) == f"cannot write {target}: No space left on device"
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_does_not_exist_is_named(tmp_path) -> None:
    with pytest.raises(gator.FileError, match=r"cannot write .*nowhere/note.txt: there is no folder .*nowhere"):
        write_atomically(tmp_path / "nowhere" / "note.txt", lambda temporary: temporary.write_text("hello"))


def test_a_folder_in_the_place_of_the_file(tmp_path) -> None:
    (tmp_path / "note.txt").mkdir()
    with pytest.raises(gator.FileError, match=r"cannot write .*note.txt: "):
        write_atomically(tmp_path / "note.txt", lambda temporary: temporary.write_text("hello"))
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_readers_see_the_old_content_until_the_new_is_complete(tmp_path) -> None:
    target = tmp_path / "note.txt"
    target.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".note.txt.")

    write_atomically(target, write)
    assert target.read_text() == "new"
