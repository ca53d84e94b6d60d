"""The state of a run as a checkpoint holds it, and a run restored from its last checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from gator.errors import RunError
from gator.training.checkpoint import (
    State,
    mapping_from,
    mapping_state,
    network_from,
    network_state,
    optimizer_state,
    random_state,
    read_latest,
    set_random_state,
)
from gator.training.folder import check_same_recipe
from gator.training.loop import Position
from gator.training.recipe_file import as_mapping
from gator.training.report import Figures, Outcome

if TYPE_CHECKING:
    from gator.training.stages import Run

_NUMBERS = ("channels", "total_steps", "accuracy_cut", "accuracy_best", "seconds", "whole_cost", "share")
_TENSORS = ("torch", "cuda")  # random number generators whose state is a tensor


def state_of(run: Run) -> State:
    """Everything a resumed run needs to compute exactly what the uninterrupted run would have computed."""
    loop, last = run.loop, run.stage is None
    random = run.processes.gather(random_state())
    state = State(
        {f"random/{rank}/{key}": own[key] for rank, own in enumerate(random) for key in _TENSORS if own[key] is not None},
        {
            "recipe": as_mapping(run.recipe),
            "processes": run.processes.count,
            "random": [{key: own[key] for key in ("python", "numpy")} for own in random],
            "stage": run.stage_number,
            "position": None if loop is None else asdict(loop.position),
            "losses": run.processes.gather(0.0 if loop is None else loop.position.loss),
            "before": None if run.before is None else asdict(run.before),
            "rounds": [asdict(outcome) for outcome in run.rounds],
            "numbers": [getattr(run, name) for name in _NUMBERS],
            "metrics_bytes": run.folder.metrics_bytes(),
            "scaler": run.processes.precision.state_dict(),
        },
    )  # fmt: skip
    if not last and (loop is None or loop.kind != "finetune" or run.more_rounds()):
        state = state.with_part("model", network_state(run.model))
    if run.pruner is not None:
        state = state.with_part("pruner", mapping_state(run.pruner.state_dict()))
    if loop is not None:
        state = state.with_part("optimizer", optimizer_state(loop.optimizer, loop.network))
        if loop.kind == "finetune":
            state = state.with_part("small", network_state(loop.network))
    return state


def restore_(run: Run) -> None:
    """Restore the run from its last checkpoint; random number generators last, since building networks uses them."""
    found = read_latest(run.folder.checkpoints)
    if found is None:
        if run.resuming:  # it was killed before the first checkpoint: start from the beginning, as a new run does
            run.model = run.built()
            if run.processes.is_rank_zero:
                run.folder.truncate_metrics(0)
            run.watch.note("no checkpoint yet: starting from the beginning")
        return
    path, state = found
    content = state.content
    check_same_recipe(content["recipe"], run.recipe, path)
    if content["processes"] != run.processes.count:
        raise RunError(
            f"{path} was written by a run with {content['processes']} processes; resume with as many, not {run.processes.count}"
        )
    run.stage_number = content["stage"]
    run.before = None if content["before"] is None else Figures(**content["before"])
    run.rounds = [Outcome.from_json(outcome) for outcome in content["rounds"]]
    for name, number in zip(_NUMBERS, content["numbers"], strict=True):
        setattr(run, name, number)
    networks = run.networks
    if "model" in content:
        run.model = networks.placed(network_from(state.part("model"), networks.fresh(), path))
    if "pruner" in content:
        run.make_pruner(mapping_from(state.part("pruner")))
    if content["position"] is not None:
        stage = run.stage
        assert stage is not None
        network = run.model
        if "small" in content:
            network = networks.placed(network_from(state.part("small"), networks.fresh(), path))
        pruner = run.pruner if stage.kind == "prune" else None
        run.make_loop(stage, network, pruner, state.part("optimizer"))
        assert run.loop is not None
        run.loop.position = Position(**content["position"] | {"loss": content["losses"][run.processes.rank]})
    run.processes.precision.load_state_dict(content["scaler"])
    if run.processes.is_rank_zero:
        run.folder.truncate_metrics(content["metrics_bytes"])
    rank = run.processes.rank
    set_random_state({**content["random"][rank], **state.under(f"random/{rank}")})
    steps = run.total_steps + (0 if run.loop is None else run.loop.position.step)
    run.watch.note(f"resuming from step {steps}: {path}")
