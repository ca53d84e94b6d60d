"""The headline of a run: what was bought, and at what price, in a sentence, in a few large figures and in a table."""

from __future__ import annotations

from dataclasses import dataclass

from gator.report.numbers import compact, cost_name, milliseconds, percent, points, runtime_name
from gator.report.run_content import NetworkFacts, RunContent


@dataclass(frozen=True)
class Tile:
    """One large figure with a word above and a line below."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class Row:
    """A row of the table of before and after."""

    label: str
    before: str
    after: str
    ratio: str


def sentence(run: RunContent) -> str:
    """What the run came to, in a sentence or two; of an unfinished one, how far it is."""
    if not run.finished:
        return f"This run is not finished: so far it has completed {run.stopped_at}."
    dense, result = run.dense, run.result
    assert dense is not None
    assert result is not None
    faster = ""
    runtime = next(iter(result.latency_ms))
    if dense.latency_ms[runtime] and result.latency_ms[runtime]:
        share = percent(result.latency_ms[runtime] / dense.latency_ms[runtime])
        faster = f" On {runtime_name(runtime)} it takes {share} of the time."
    return (
        f"The pruned network has {percent(result.macs / dense.macs)} of the multiply-adds and "
        f"{percent(result.params / dense.params)} of the parameters of the dense one, and an accuracy of "
        f"{result.accuracy:.2f}\u00a0% instead of {dense.accuracy:.2f}\u00a0%.{faster}"
    )


def tiles(run: RunContent) -> list[Tile]:
    dense, result = run.dense, run.result
    if dense is None:
        return []
    if result is None:
        left = percent(run.epochs[-1].cost_left) if run.epochs else percent(1)
        return [
            Tile("Accuracy, dense", f"{dense.accuracy:.2f} %", "before pruning"),
            Tile("MACs, dense", compact(dense.macs), "before pruning"),
            Tile("Parameters, dense", compact(dense.params), "before pruning"),
            Tile("Cost left", left, f"of {cost_name(run.recipe.prune.cost)}, so far"),
        ]
    found = [
        Tile("Accuracy", f"{result.accuracy:.2f}\u00a0%", f"{points(result.accuracy - dense.accuracy)} points"),
        Tile("MACs left", percent(result.macs / dense.macs), f"{compact(result.macs)} of {compact(dense.macs)}"),
        Tile("Parameters left", percent(result.params / dense.params), f"{compact(result.params)} of {compact(dense.params)}"),
    ]
    for runtime, ms in list(result.latency_ms.items())[:1]:
        whole = dense.latency_ms[runtime]
        if whole:
            detail = f"{milliseconds(ms)} of {milliseconds(whole)} ms, {runtime_name(runtime)}"
            found.append(Tile("Latency left", percent(ms / whole), detail))
    return found


def rows(dense: NetworkFacts, result: NetworkFacts) -> list[Row]:
    """Before, after and ratio of every figure; latency on every runtime that was measured."""
    found = [Row("accuracy %", f"{dense.accuracy:.2f}", f"{result.accuracy:.2f}", points(result.accuracy - dense.accuracy))]
    counts = [("MACs", dense.macs, result.macs), ("FLOPs", 2 * dense.macs, 2 * result.macs)]
    counts += [("parameters", dense.params, result.params), ("bytes", dense.bytes, result.bytes)]
    found += [Row(label, f"{one:,}", f"{two:,}", f"{two / one:.3f}" if one else "") for label, one, two in counts]
    for runtime, ms in result.latency_ms.items():
        whole = dense.latency_ms.get(runtime)
        if whole:
            found.append(
                Row(f"latency ms, {runtime_name(runtime)}", milliseconds(whole), milliseconds(ms), f"{ms / whole:.3f}")
            )
    return found
