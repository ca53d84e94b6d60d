"""`--resume auto`: the same command starts a run, continues it after a failure, and returns its result once it is finished."""

from __future__ import annotations

import signal
import threading

import pytest
from torch.distributed import HashStore
from training.small import short_recipe, tensors_of
from training.test_run import Recording

import gator
from gator.training.fresh_store import fresh_store
from gator.training.recipe_file import recipe_text

BEGINNING = "no checkpoint yet: starting from the beginning"


def stop_at(step: int):
    def stop(moment) -> None:
        if moment.phase == "prune" and moment.step == step:
            signal.raise_signal(signal.SIGINT)

    return stop


@pytest.mark.slow
@pytest.mark.trains
def test_a_run_starts_continues_and_is_returned(tmp_path) -> None:
    folder, recipe = tmp_path / "run", short_recipe()
    first = Recording(stop_at(3))
    with pytest.raises(gator.RunError, match="stopped; the checkpoint is"):
        gator.run(recipe, folder=folder, watch=first, resume=True)
    assert first.notes[0] == BEGINNING
    second = Recording()
    result = gator.run(recipe, folder=folder, watch=second, resume=True)
    assert second.notes[0].startswith("resuming from step 17: ")
    third = Recording()
    assert gator.run(recipe, folder=folder, watch=third, resume=True) == result
    assert third.notes == [f"the run in {folder} is finished"]
    gator.run(recipe, folder=tmp_path / "whole")
    assert tensors_of(folder / "round-1.safetensors") == tensors_of(tmp_path / "whole" / "round-1.safetensors")
    with pytest.raises(gator.RunError, match=r"recipe.toml was written with another recipe; these keys differ: prune.target"):
        gator.run(short_recipe("prune.target=0.4"), folder=folder, resume=True)


@pytest.mark.slow
@pytest.mark.trains
def test_a_run_that_was_killed_before_its_first_checkpoint(tmp_path) -> None:
    """Also one that was killed while it made its folder."""
    folder, recipe = tmp_path / "run", short_recipe()
    for left in ([], [".recipe.toml.1a2b3c4d"], ["recipe.toml"]):
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        for name in ("environment.json", "metrics.jsonl", *left):
            (folder / name).write_text("")
        if "recipe.toml" in left:
            (folder / "recipe.toml").write_text(recipe_text(recipe))
        watch = Recording(stop_at(1))
        with pytest.raises(gator.RunError, match="stopped; the checkpoint is"):
            gator.run(recipe, folder=folder, watch=watch, resume=True)
        assert watch.notes[0] == BEGINNING
        for file in sorted(folder.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()


def test_a_folder_with_other_files_is_not_written_to(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(gator.RunError, match="exists already; choose another folder"):
        gator.run(short_recipe(), folder=tmp_path, resume=True)
    with pytest.raises(gator.RunError, match="resume=True needs folder="):
        gator.run(short_recipe(), resume=True)


def start(store: HashStore, ranks: list[int], count: int) -> dict[int, object]:
    """The part of the store that every rank gets, when they arrive in this order."""
    found: dict[int, object] = {}
    threads = [threading.Thread(target=lambda r=r: found.update({r: fresh_store(store, r, count)}), daemon=True) for r in ranks]
    for thread in threads:
        thread.start()
        thread.join(0.1)  # rank 0 waits for the others; so do those that come before it
    for thread in threads:
        thread.join(10)
    return found


@pytest.mark.parametrize("ranks", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_a_store_that_is_used_again_keeps_the_starts_apart(ranks) -> None:
    store = HashStore()
    for number in range(3):
        parts = start(store, ranks, 3)
        assert sorted(parts) == [0, 1, 2]
        assert not parts[1].check(["key"]), "a key of an earlier start"
        parts[0].set("key", str(number))
        assert parts[2].get("key") == str(number).encode()


def test_a_start_that_was_killed_halfway_does_not_matter_to_the_next() -> None:
    store = HashStore()
    store.set("gator/name", "old")  # rank 0 was killed after it had confirmed one of two
    store.set("gator/old/of-rank-1", "drawn")
    store.set("gator/old/confirmed-drawn", "")
    store.set("gator/old/of-rank-2", "other")
    parts = start(store, [2, 1, 0], 3)
    parts[0].set("key", "value")
    assert parts[1].get("key") == parts[2].get("key") == b"value"
