"""Several targets in one run, a limit on the loss of accuracy, and channels chosen without gates."""

from __future__ import annotations

import json
import signal

import pytest
import torch
from training.small import metrics_of, short_recipe, tensors_of

import gator
from gator.training.recipe import PrunePhase
from gator.training.report import Figures, Outcome
from gator.training.rounds import Goal, chosen_round, may_go_on, next_goal
from gator.training.watch import Moment, Watch


def outcome(accuracy: float, share: float) -> Outcome:
    return Outcome("", "", Figures(accuracy, 1, 2, 1, 1), 0.0, accuracy, share)


def goals(prune: PrunePhase, accuracy_at) -> list[float]:
    """The targets that a run would try, if a network with a share of the cost had this accuracy; the dense one has 90 %."""
    done: list[Outcome] = []
    while (goal := next_goal(prune, done, 90.0)) is not None:
        assert isinstance(goal.target, float)
        done.append(outcome(accuracy_at(goal.target), goal.target))
    return [each.share for each in done]


def test_a_limit_on_the_drop_goes_down_the_targets_and_then_bisects() -> None:
    prune = PrunePhase(epochs=1, targets=(0.8, 0.6, 0.4), max_drop=1.0, bisections=3)
    assert goals(prune, lambda share: 90.0) == [0.8, 0.6, 0.4]  # all are within the limit
    assert goals(prune, lambda share: 90.0 if share >= 0.5 else 88.0) == pytest.approx([0.8, 0.6, 0.4, 0.5, 0.45, 0.475])
    assert goals(prune, lambda share: 80.0) == pytest.approx([0.8, 0.9, 0.95, 0.975])  # none is: nearer to the dense network
    assert goals(PrunePhase(epochs=1, target=0.5, max_drop=1.0, bisections=0), lambda share: 80.0) == [0.5]


def test_a_bisection_starts_from_the_last_network_within_the_limit() -> None:
    prune = PrunePhase(epochs=1, targets=(0.8, 0.4), max_drop=1.0)
    done = [outcome(90.0, 0.8), outcome(70.0, 0.4)]
    assert next_goal(prune, done, 90.0) == Goal(target=pytest.approx(0.6), start=0)
    done.append(outcome(89.5, 0.6))
    assert next_goal(prune, done, 90.0) == Goal(target=pytest.approx(0.5), start=2)
    assert next_goal(prune, [outcome(70.0, 0.8)], 90.0) == Goal(target=pytest.approx(0.9), start=None)


def test_the_result_is_the_smallest_network_within_the_limit_or_the_nearest() -> None:
    prune = PrunePhase(epochs=1, targets=(0.8, 0.4), max_drop=1.0)
    done = [outcome(90.2, 0.8), outcome(70.0, 0.4), outcome(89.0, 0.6), outcome(88.0, 0.5)]
    text = "the smallest network within max_drop = 1 is that of round 3: 1.00 points lost"
    assert chosen_round(prune, done, 90.0) == (2, text)
    index, text = chosen_round(prune, done[1:2] + done[3:], 90.0)
    assert (index, text) == (1, "no network is within max_drop = 1; the nearest is that of round 2: 2.00 points lost")
    assert chosen_round(PrunePhase(epochs=1, target=0.5), done, 90.0) == (3, "")


def test_gated_weights_are_kept_as_long_as_they_are_needed() -> None:
    assert [may_go_on(PrunePhase(targets=(0.8, 0.4)), number) for number in (0, 1)] == [True, False]
    assert [may_go_on(PrunePhase(alphas=(1.0, 2.0)), number) for number in (0, 1)] == [True, False]
    assert may_go_on(PrunePhase(target=0.5, max_drop=1.0), 5)
    assert not may_go_on(PrunePhase(target=0.5), 0)


@pytest.mark.trains
def test_three_targets_give_three_networks_from_one_run(tmp_path) -> None:
    recipe = short_recipe("prune.targets=[0.8, 0.6, 0.4]", "prune.epochs=1", "prune.round_to=1")
    result = gator.run(recipe, folder=tmp_path / "run")
    assert [outcome.name for outcome in result.rounds] == ["target 0.8", "target 0.6", "target 0.4"]
    for outcome, target in zip(result.rounds, (0.8, 0.6, 0.4), strict=True):
        assert target - 0.03 < outcome.figures.macs / result.before.macs <= target
        assert outcome.share == pytest.approx(outcome.figures.macs / result.before.macs)
        small = gator.load(tmp_path / "run" / outcome.file, gator.zoo.build("digits:resnet").model)
        assert gator.measure(small, torch.zeros(1, 1, 8, 8)).macs == outcome.figures.macs
    assert result.network == tmp_path / "run" / "round-3.safetensors"
    first = [line for line in metrics_of(tmp_path / "run") if line["phase"] == "prune" and line["round"] == 1]
    assert 0.55 < first[-1]["cost_left"] <= 0.6  # of the dense network, not of the round before


@pytest.mark.slow
@pytest.mark.trains
def test_a_run_with_several_targets_is_resumed_in_the_middle(tmp_path) -> None:
    class Stop(Watch):
        def wants_step(self) -> bool:
            return True

        def step(self, moment: Moment) -> None:
            if moment.phase == "prune" and moment.round == 1 and moment.step == 4:
                signal.raise_signal(signal.SIGINT)

    recipe = short_recipe("prune.targets=[0.8, 0.5]", "prune.epochs=1", "train.epochs=1")
    whole = gator.run(recipe, folder=tmp_path / "whole")
    with pytest.raises(gator.RunError, match="stopped"):
        gator.run(recipe, folder=tmp_path / "stopped", watch=Stop())
    again = gator.resume(tmp_path / "stopped")
    assert again.rounds[1].figures.macs == whole.rounds[1].figures.macs
    for number in (1, 2):
        one, two = (tensors_of(tmp_path / name / f"round-{number}.safetensors") for name in ("whole", "stopped"))
        assert one == two


@pytest.mark.slow
@pytest.mark.trains
def test_a_run_ends_with_the_smallest_network_that_keeps_the_accuracy(tmp_path) -> None:
    """However the accuracies turn out, the result keeps its promise, or the run says that no network does."""
    recipe = short_recipe(
        "data.hold_back=300", "train.epochs=6", "prune.targets=[0.9, 0.1]", "prune.max_drop=1.0", "prune.bisections=1",
        "prune.epochs=2", "finetune.epochs=2",
    )  # fmt: skip
    result = gator.run(recipe, folder=tmp_path / "run")
    drops = [result.before.accuracy - outcome.figures.accuracy for outcome in result.rounds]
    within = [index for index, drop in enumerate(drops) if drop <= 1.0 + 1e-6]
    if within:
        assert result.chosen == min(within, key=lambda index: result.rounds[index].share)
        assert f"within max_drop = 1 is that of round {result.chosen + 1}" in str(result)
    else:
        assert drops[result.chosen] == min(drops)
        assert "no network is within max_drop = 1" in str(result)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["chosen"] == result.chosen


@pytest.mark.parametrize("criterion", ["l1", pytest.param("taylor", marks=pytest.mark.slow)])
def test_channels_are_chosen_by_a_criterion_without_gates(criterion, tmp_path) -> None:
    recipe = short_recipe("prune.epochs=0", f"prune.criterion={criterion}", "prune.round_to=1", "finetune.distill=0.5")
    result = gator.run(recipe, folder=tmp_path / "run")
    assert 0.45 < result.rounds[0].figures.macs / result.before.macs <= 0.5
    assert [line["phase"] for line in metrics_of(tmp_path / "run")] == ["train", "train", "finetune"]


def test_channels_are_chosen_by_a_function_of_the_user(tmp_path) -> None:
    def first_half(model, graph, cost):
        assert cost == pytest.approx(0.5 * graph.macs)
        return {edge.name: torch.arange(edge.width) < edge.width // 2 for edge in graph.edges}

    recipe = short_recipe("prune.epochs=0", "prune.criterion=function", "train.epochs=0")
    result = gator.run(recipe, folder=tmp_path / "run", choose=first_half)
    assert result.rounds[0].figures.macs < 0.3 * result.before.macs
    assert result.rounds[0].share == pytest.approx(result.rounds[0].figures.macs / result.before.macs)
    with pytest.raises(gator.RunError, match="go together"):
        gator.run(recipe, folder=tmp_path / "other")
