"""The end of a run: its networks are timed beside the dense one, and one round is chosen as the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from gator.cost.latency.network_timer import NetworkTimer
from gator.rank_zero import on_rank_zero
from gator.training.final_times import RuntimeTimes, times_on_all, why_slower
from gator.training.folder import RunFolder
from gator.training.networks import Networks
from gator.training.report import Figures, Outcome, Result, with_latencies
from gator.training.rounds import chosen_round

_LONGER = 1.06  # than when it was chosen: two measurements differ by less


def result_of(
    folder: RunFolder, networks: Networks, before: Figures, outcomes: Sequence[Outcome], timer: NetworkTimer, *,
    tested_on: str, seconds: float, say: Callable[[str], None],
) -> Result:  # fmt: skip
    """The result of a run with these finished rounds. Latencies are measured on rank 0, all networks interleaved."""
    files = [folder.dense, *(folder.path / outcome.file for outcome in outcomes)]
    loaded = [networks.from_file(file) for file in files]
    times = on_rank_zero(lambda: times_on_all(loaded, timer, say))
    dense, *after = with_latencies([before, *(outcome.figures for outcome in outcomes)], times)
    rounds = tuple(replace(outcome, figures=one) for outcome, one in zip(outcomes, after, strict=True))
    prune = networks.recipe.prune
    chosen, why = chosen_round(prune, rounds, dense.accuracy)
    slower = on_rank_zero(lambda: _slower(times, chosen + 1, loaded, timer, prune.round_to))
    missed = "" if prune.cost != "latency" or timer.is_trial else _missed(dense, rounds[chosen])
    return Result(
        str(folder.path),
        tested_on,
        round(seconds, 1),
        dense,
        rounds,
        timer.conditions,
        chosen,
        why,
        missed=missed,
        slower=slower,
    )


def _missed(dense: Figures, outcome: Outcome) -> str:
    """A sentence if the finished network takes longer than it was measured to take when it was chosen; empty if not."""
    found = outcome.figures.latency_ms / dense.latency_ms
    if found <= _LONGER * outcome.share:
        return ""
    return (
        f"{outcome.name} is missed: the network was measured at {outcome.share:.3f} of the dense network's time when it was "
        f"chosen, and takes {found:.3f} now. The machine was probably busy then.\n"
        "  Prune again while nothing else runs; `gator latency check` shows whether the table is good."
    )


def _slower(
    times: Sequence[RuntimeTimes], index: int, networks: Sequence[nn.Module], timer: NetworkTimer, round_to: int | str
) -> tuple[str, ...]:
    """A sentence for every runtime on which the chosen network is slower than the dense one."""
    found = (why_slower(each, index, networks[0], networks[index], timer, round_to) for each in times)
    return tuple(text for text in found if text)
