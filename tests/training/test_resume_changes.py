"""A run that diverged continues with changes from its last good checkpoint; a run folder can be replaced."""

from __future__ import annotations

import re

import pytest
from training.small import short_recipe

import gator
from gator.training.changes import may_change
from gator.training.checkpoint import checkpoints
from gator.training.watch import Moment, Watch


class Notes(Watch):
    """Keeps what is said; raises Ctrl-C in the step that is asked for."""

    def __init__(self, stop=None) -> None:
        self.said: list[str] = []
        self._stop = stop

    def note(self, text: str) -> None:
        self.said.append(text)

    def wants_step(self) -> bool:
        return self._stop is not None

    def step(self, moment: Moment) -> None:
        self._stop(moment)


@pytest.mark.slow
@pytest.mark.trains
def test_a_diverged_run_continues_with_a_smaller_learning_rate(tmp_path) -> None:
    folder = tmp_path / "run"
    recipe = short_recipe("prune.lr=1e30", "prune.schedule=constant", "run.checkpoint_seconds=0")
    with pytest.raises(gator.RunError) as error:
        gator.run(recipe, folder=folder)
    # The checkpoint after the step that ruined the weights is not a good one; that after [train] is.
    assert f"gator prune --resume {folder} --set prune.lr=1e+29" in str(error.value)
    (last,) = re.findall(r"The last good checkpoint is (\S+)\. Continue", str(error.value))
    assert str(checkpoints(folder / "checkpoints")[-1]) == last
    notes = Notes()
    result = gator.resume(folder, changes=["prune.lr=0.05", "prune.schedule=cosine"], watch=notes)
    assert any(text.startswith("resuming from step 14: ") and last in text for text in notes.said)
    assert result.rounds[0].figures.macs <= 0.5 * result.before.macs
    changed = (folder / "recipe.toml").read_text()
    assert "# resumed with prune.lr from 1e+30 to 0.05" in changed
    assert gator.read_recipe(folder / "recipe.toml").prune.lr == 0.05


@pytest.mark.slow
def test_without_a_checkpoint_the_changed_run_begins_anew(tmp_path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(gator.RunError, match=r"There is no good checkpoint yet.*(?s:.*)--set train.lr=1e\+29"):
        gator.run(short_recipe("train.lr=1e30", "train.schedule=constant"), folder=folder)
    with pytest.raises(gator.RunError, match=r"prune.target, seed cannot change.*(?s:.*)These may change: lr, schedule"):
        gator.resume(folder, changes=["prune.target=0.4", "seed=3"])
    notes = Notes()
    gator.resume(folder, changes=["train.lr=0.1", "train.schedule=cosine"], watch=notes)
    assert "no checkpoint yet: starting from the beginning" in notes.said


def test_which_keys_may_change() -> None:
    assert all(map(may_change, ("train.lr", "prune.clip", "finetune.distill", "run.threads")))
    assert not any(map(may_change, ("run.precision", "prune.target", "prune.epochs", "data.batch", "seed", "model.weights")))


@pytest.mark.slow
def test_a_run_folder_is_replaced_and_other_files_stay(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = short_recipe("train.epochs=0", "prune.epochs=1", "finetune.epochs=0")
    first = gator.run(recipe)
    (tmp_path / "runs" / "digits" / "mine.txt").write_text("mine")
    with pytest.raises(gator.RunError, match="--overwrite"):
        gator.run(recipe, folder=first.folder)
    with pytest.raises(gator.DataError):  # wrong settings remove nothing
        gator.run(short_recipe("data.name=nothing"), overwrite=True)
    assert (tmp_path / "runs" / "digits" / "result.json").is_file()
    second = gator.run(
        short_recipe("train.epochs=0", "prune.epochs=1", "finetune.epochs=0", "prune.target=0.8"), overwrite=True
    )
    assert second.folder == first.folder
    assert second.rounds[0].name == "target 0.8"
    assert (tmp_path / "runs" / "digits" / "mine.txt").read_text() == "mine"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(gator.RunError, match="is not a run folder"):
        gator.run(recipe, folder=tmp_path / "other", overwrite=True)
    assert (tmp_path / "other" / "thesis.tex").is_file()


@pytest.mark.slow
def test_a_second_interrupt_says_where_the_run_stands(tmp_path) -> None:
    import signal

    def twice(moment: Moment) -> None:
        if moment.phase == "prune":
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    folder = tmp_path / "run"
    with pytest.raises(gator.RunError, match=rf"stopped at once; the last checkpoint is .*Resume with: .*--resume {folder}"):
        gator.run(short_recipe(), folder=folder, watch=Notes(twice))
    assert gator.resume(folder).rounds


def test_a_random_network_is_not_pruned_in_silence(tmp_path) -> None:
    from gator.training.weights import missing_weights

    assert missing_weights(short_recipe()) == ""
    assert missing_weights(short_recipe("train.epochs=0", "model.weights=x.pt")) == ""
    assert "warning: the network has random weights, because" in missing_weights(short_recipe("train.epochs=0"))
    assert "weights that net.py:net gives it" in missing_weights(short_recipe("train.epochs=0", "model.name=net.py:net"))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("prun.lr=1", "prun is not a key; did you mean prune?"),
        ("trian.epochs=1", "trian is not a key; did you mean train?"),
        ("prune.tarjet=1", "did you mean prune.target?"),
        ("train.target=0.5", "did you mean prune.target?"),
    ],
)
def test_suggestions(key: str, words: str) -> None:
    with pytest.raises(gator.RecipeError, match=re.escape(words)):
        short_recipe(key)
