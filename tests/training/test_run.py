"""A whole run on digits: what it leaves behind, how it stops, and how it goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
import torch
from training.small import THREADS, metrics_of, short_recipe, tensors_of

import gator
from gator import zoo
from gator.training import run_lock
from gator.training.checkpoint import checkpoints
from gator.training.watch import Moment, Watch

pytestmark = pytest.mark.trains


class Recording(Watch):
    """Records what it is told; may act after a step."""

    def __init__(self, at_step=lambda moment: None) -> None:
        self.epochs: list[Moment] = []
        self.notes: list[str] = []
        self._act = at_step

    def note(self, text: str) -> None:
        self.notes.append(text)

    def wants_step(self) -> bool:
        return True

    def step(self, moment: Moment) -> None:
        self._act(moment)

    def epoch(self, moment: Moment) -> None:
        self.epochs.append(moment)


def test_everything_a_person_needs_is_in_the_folder(tmp_path) -> None:
    folder, watch = tmp_path / "run", Recording()
    result = gator.run(short_recipe(), folder=folder, watch=watch)
    assert [m.phase for m in watch.epochs] == ["train"] * 2 + ["prune"] * 2 + ["finetune"]
    written = json.loads((folder / "result.json").read_text())
    assert written == json.loads(json.dumps(result.as_json()))
    before, after = result.before, result.rounds[0].figures
    assert 0.45 * before.macs < after.macs <= 0.5 * before.macs
    assert after.latency_ms > 0
    table = (folder / "result.txt").read_text()
    assert table.rstrip().endswith("latency: eager, cpu, 1 thread, float32, channels last, batch 2 of 1x8x8")
    for row in ("accuracy %", "MACs", "parameters", "bytes", "latency ms"):
        assert f"\n{row} " in table
    assert gator.read_recipe(folder / "recipe.toml") == short_recipe()
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["threads"] == THREADS
    assert environment["versions"]["torch"] == torch.__version__
    lines = metrics_of(folder)
    assert [line["total_steps"] for line in lines] == [7, 14, 21, 28, 35]
    assert lines[3]["cost_left"] <= lines[3]["target"] == 0.5
    small = gator.load(folder / "round-1.safetensors", zoo.build("digits:resnet").model)
    assert gator.measure(small, torch.zeros(1, 1, 8, 8)).macs == after.macs
    assert list((folder / "events").glob("events.out.tfevents*"))
    with pytest.raises(gator.RunError, match="is finished; its table is in"):
        gator.resume(folder)


def test_the_curves_are_those_of_the_metrics(tmp_path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    gator.run(short_recipe("train.epochs=0", "finetune.epochs=0"), folder=tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "events"))
    events.Reload()
    lines = metrics_of(tmp_path / "run")
    points = {event.step: event.value for event in events.Scalars("prune/loss")}
    assert points == pytest.approx({line["total_steps"]: line["loss"] for line in lines})


@pytest.mark.slow
def test_rounds_continue_from_gated_weights(tmp_path) -> None:
    """A higher alpha leaves less, and each round's network is fine-tuned and saved."""
    watch = Recording()
    recipe = short_recipe("prune.alphas=[1, 20, 200]", "prune.gamma=2", "prune.lr=0.1")
    result = gator.run(recipe, folder=tmp_path / "run", watch=watch)
    assert [outcome.name for outcome in result.rounds] == ["alpha 1", "alpha 20", "alpha 200"]
    macs = [outcome.figures.macs for outcome in result.rounds]
    assert result.before.macs >= macs[0] >= macs[1] >= macs[2]  # what is closed stays closed
    assert macs[0] > 0.9 * result.before.macs
    assert macs[2] < 0.5 * result.before.macs
    for number in (1, 2, 3):
        assert (tmp_path / "run" / f"round-{number}.safetensors").is_file()
    living = [m.living for m in watch.epochs if m.phase == "prune"]
    assert living == sorted(living, reverse=True)


@pytest.mark.slow
def test_shrinking_changes_nothing_but_the_time(tmp_path) -> None:
    """The same run with and without shrinking meets the budget; noise is drawn for fewer channels: not by the same ones."""
    for shrink in ("true", "false"):
        result = gator.run(short_recipe("prune.epochs=3", f"prune.shrink={shrink}"), folder=tmp_path / shrink)
        assert 0.48 * result.before.macs < result.rounds[0].figures.macs <= 0.5 * result.before.macs


@pytest.mark.parametrize(
    ("phase", "precision"),
    [
        pytest.param("train", "no", marks=pytest.mark.slow),
        ("prune", "no"),
        pytest.param("prune", "bf16", marks=pytest.mark.slow),
        pytest.param("finetune", "no", marks=pytest.mark.slow),
        pytest.param("finetune", "bf16", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_saves_and_the_rest_is_the_same(phase, precision, tmp_path) -> None:
    recipe = short_recipe("finetune.distill=0.5", "prune.distill=0.5", f"run.precision={precision}", "prune.per=example")
    whole = gator.run(recipe, folder=tmp_path / "whole")

    def stop(moment: Moment) -> None:
        if moment.phase == phase and moment.step == (moment.steps - 2):
            signal.raise_signal(signal.SIGINT)

    folder, handler = tmp_path / "stopped", signal.getsignal(signal.SIGINT)
    with pytest.raises(gator.RunError, match=r"stopped; the checkpoint is .*step-.*Resume with: gator prune --resume .*stop"):
        gator.run(recipe, folder=folder, watch=Recording(stop))
    assert signal.getsignal(signal.SIGINT) is handler
    again = gator.resume(folder)
    assert again.rounds[0].figures.accuracy == whole.rounds[0].figures.accuracy
    assert tensors_of(folder / "round-1.safetensors") == tensors_of(tmp_path / "whole" / "round-1.safetensors")
    one, two = ([{**line, "seconds": 0} for line in metrics_of(path)] for path in (folder, tmp_path / "whole"))
    assert one == two


@pytest.mark.slow
def test_several_rounds_are_resumed_in_the_middle(tmp_path) -> None:
    changes = ("prune.alphas=[40, 200]", "prune.gamma=2", "prune.min_width=2", 'prune.keep=["stem"]')
    gator.run(short_recipe(*changes), folder=tmp_path / "whole")

    def stop(moment: Moment) -> None:
        if moment.phase == wanted[0] and moment.round == wanted[1] and moment.step == moment.steps - 3:
            signal.raise_signal(signal.SIGTERM)

    folder = tmp_path / "stopped"
    wanted = ("finetune", 0)
    with pytest.raises(gator.RunError, match="stopped"):
        gator.run(short_recipe(*changes), folder=folder, watch=Recording(stop))
    wanted = ("prune", 1)
    with pytest.raises(gator.RunError, match="stopped"):
        gator.resume(folder, watch=Recording(stop))
    gator.resume(folder)
    for number in (1, 2):
        name = f"round-{number}.safetensors"
        assert tensors_of(folder / name) == tensors_of(tmp_path / "whole" / name)


def test_a_non_finite_loss_stops_the_run(tmp_path) -> None:
    recipe = short_recipe("prune.lr=1e30", "prune.schedule=constant", "run.checkpoint_seconds=0")
    with pytest.raises(gator.RunError) as error:
        gator.run(recipe, folder=tmp_path / "run")
    text = str(error.value)
    assert re.search("the loss is (nan|-?inf) at step", text)
    assert "of prune (epoch 1), learning rate 1e+30" in text
    last = checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert f"The last good checkpoint is {last}" in text
    assert "--set prune.lr=" in text


def test_a_full_disk_stops_the_run_and_the_last_checkpoint_stays(tmp_path, monkeypatch) -> None:
    from gator.files import save as files

    real, count = files.save_file, []

    def full(tensors, path, metadata):
        count.append(path)
        if len(count) > 3:
            raise OSError(28, "No space left on device")
        real(tensors, path, metadata=metadata)

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(gator.RunError, match=r"(?s)not be written: .*No space left.*The last good checkpoint is .*--resume"):
        gator.run(short_recipe("run.checkpoint_seconds=0"), folder=tmp_path / "run")
    monkeypatch.setattr(files, "save_file", real)
    assert gator.resume(tmp_path / "run").rounds


def test_folders_that_cannot_be_used(tmp_path) -> None:
    (tmp_path / "something").write_text("x")
    with pytest.raises(gator.RunError, match="exists already; choose another folder"):
        gator.run(short_recipe(), folder=tmp_path)
    with pytest.raises(gator.RunError, match=r"is not a run folder: it has no recipe\.toml"):
        gator.resume(tmp_path)


def test_one_run_at_a_time(tmp_path, monkeypatch) -> None:
    """Two that resume the same run would overwrite each other's checkpoints."""

    def stop(moment: Moment) -> None:
        if moment.phase == "prune":
            signal.raise_signal(signal.SIGINT)

    folder = tmp_path / "run"
    monkeypatch.setattr(run_lock, "_PATIENCE", 0.0)
    with pytest.raises(gator.RunError, match="stopped"):
        gator.run(short_recipe(), folder=folder, watch=Recording(stop))
    other = "from pathlib import Path\nfrom gator.training.run_lock import RunLock\nimport sys\n"
    other += "lock = RunLock()\nlock.acquire(Path(sys.argv[1]))\nprint('locked', flush=True)\nsys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", other, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        for start in (lambda: gator.resume(folder), lambda: gator.run(short_recipe(), folder=folder, overwrite=True)):
            with pytest.raises(gator.RunError, match=r"a run is already active in .*run; wait until it is finished"):
                start()
        process.kill()
    assert gator.resume(folder).rounds


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path) -> None:
    def stop(moment: Moment) -> None:
        if moment.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(gator.RunError):
        gator.run(short_recipe(), folder=tmp_path / "run", watch=Recording(stop))
    file = tmp_path / "run" / "recipe.toml"
    file.write_text(file.read_text().replace("target = 0.5", "target = 0.4"))
    with pytest.raises(gator.RunError, match=r"was written with another recipe; these keys differ: prune.target"):
        gator.resume(tmp_path / "run")
    assert len(checkpoints(tmp_path / "run" / "checkpoints")) == 1


def test_what_is_wrong_is_said_before_a_folder_is_made(tmp_path) -> None:
    for change, words in [
        ("model.weights=nowhere.pt", "model.weights: there is no file nowhere.pt"),
        ("data.name=nothing", "has no 'nothing'"),
        ("model.name=digits:vgg", "digits has no 'vgg'"),
        ("run.device=cuda", "torch finds no such device"),
        ("data.batch=5000", "5,?000"),
    ]:
        if change == "run.device=cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(gator.GatorError, match=words):
            gator.run(short_recipe(change), folder=tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_too_few_scores_for_the_data(tmp_path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 4))\n"
    )
    with pytest.raises(gator.RunError, match=r"output has shape \(192, 4\), but the data has labels up to 9"):
        gator.run(short_recipe(f"model.name={path}:net"), folder=tmp_path / "run")


def test_sub_batches_add_up_to_the_batch(tmp_path) -> None:
    """Without batch norms and noise, a step in parts is the step of the whole."""
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "def net():\n"
        "    torch.manual_seed(0)\n"
        "    first, second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)\n"
        "    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))\n"
    )
    results = []
    for sub_batch in (0, 48):
        changes = (
            f"model.name={path}:net",
            f"data.sub_batch={sub_batch}",
            "prune.epochs=1",
            "prune.alphas=[0]",
            "finetune.epochs=0",
        )
        result = gator.run(short_recipe(*changes), folder=tmp_path / str(sub_batch))
        results.append(metrics_of(tmp_path / str(sub_batch))[1]["loss"])
        assert result.before.macs > 0
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_gates_during_a_share_of_the_epochs(tmp_path) -> None:
    recipe = short_recipe("train.epochs=0", "prune.gated=0.25")
    gator.run(recipe, folder=tmp_path / "run")
    first, second = (line for line in metrics_of(tmp_path / "run") if line["phase"] == "prune")
    assert first["cost_left"] == second["cost_left"] <= 0.5


def test_other_settings_of_a_run(tmp_path) -> None:
    """bf16, channels_last, AdamW, clipping, label smoothing and the memory cost work in one run."""
    changes = (
        "run.precision=bf16", "run.channels_last=true", "prune.optimizer=adamw", "prune.lr=0.001", "finetune.clip=1.0",
        "finetune.label_smoothing=0.1", "prune.cost=memory", "prune.target=100 KB", "prune.distill=0.5",
    )  # fmt: skip
    result = gator.run(short_recipe(*changes), folder=tmp_path / "run")
    assert result.rounds[0].figures.bytes <= 100_000
    assert result.rounds[0].name == "target 100 KB"
