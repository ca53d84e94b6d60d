"""Read a run folder: finished, interrupted or still running. A folder that is not one of a run is a RunError that says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gator.cost.measure import LayerCost
from gator.errors import FileError, RunError
from gator.graph.outline import Outline
from gator.report.run_content import Epoch, NetworkFacts, RunContent
from gator.training.folder import RunFolder


def read_run(path: Path) -> RunContent:
    """Everything a report shows about the run in this folder. Raises RunError if it is not a run folder or is damaged."""
    folder = RunFolder.of_run(path)
    recipe = folder.recipe()
    try:
        result = _json(folder.result) if folder.result.is_file() else None
        dense, rounds = _networks(folder, result)
        lines = _lines(folder.metrics)
        return RunContent(
            folder=str(path),
            recipe=recipe,
            recipe_text=folder.recipe_file.read_text(encoding="utf-8"),
            environment=_json(folder.environment) if folder.environment.is_file() else {},
            epochs=_epochs(lines, [network.share for network in rounds]),
            planned_epochs={line["phase"]: line["epochs"] for line in lines},
            dense=None if dense is None else dense.facts,
            rounds=tuple(network.facts for network in rounds),
            chosen=result["chosen"] if result is not None else (len(rounds) - 1 if rounds else None),
            finished=result is not None,
            outline=Outline.from_data(_json(folder.outline)) if folder.outline.is_file() else None,
            tested_on=result["tested_on"] if result is not None else "",
            seconds=result["seconds"] if result is not None else None,
            timed_under=result["timed_under"] if result is not None else "",
            why=result["why"] if result is not None else "",
            slower=(*filter(None, [result.get("missed", "")]), *result["slower"]) if result is not None else (),
        )
    except (KeyError, TypeError, ValueError, OSError, FileError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise RunError(f"the run folder {path} is damaged, or from another version of gator: {what}") from error


class _Network:
    """A network of the folder with its share of the cost, which epochs of fine-tuning do not record."""

    def __init__(self, facts: NetworkFacts, share: float | None) -> None:
        self.facts, self.share = facts, share


def _networks(folder: RunFolder, result: Mapping[str, Any] | None) -> tuple[_Network | None, list[_Network]]:
    """The dense network, if the run came that far, and those of the rounds that are finished."""
    lines = _lines(folder.networks) if folder.networks.is_file() else []
    written = {line["file"]: line for line in lines}  # the last line of a network counts
    if result is None:
        found = [_network(line, line["figures"], {}, None) for line in written.values()]
        dense = next((network for network in found if network.facts.file == folder.dense.name), None)
        return dense, [network for network in found if network is not dense]
    runtime = str(result["timed_under"]).split(",")[0]
    first = {"file": folder.dense.name, "name": "dense"}
    dense = _network(written.get(folder.dense.name, {}), result["before"], first, runtime)
    return dense, [_network(written.get(one["file"], {}), one["figures"], one, runtime) for one in result["rounds"]]


def _network(
    written: Mapping[str, Any], figures: Mapping[str, Any], outcome: Mapping[str, Any], runtime: str | None
) -> _Network:
    times = {} if runtime is None else {runtime: float(figures["latency_ms"]), **figures["other_runtimes_ms"]}
    facts = NetworkFacts(
        name=str(outcome.get("name", written.get("name"))),
        file=str(outcome.get("file", written.get("file"))),
        accuracy=float(figures["accuracy"]),
        macs=int(figures["macs"]),
        params=int(figures["params"]),
        bytes=int(figures["bytes"]),
        latency_ms=times,
        widths=written.get("widths", {}),
        layers=tuple(LayerCost(**layer) for layer in written.get("layers", ())),
        accuracy_cut=outcome.get("accuracy_cut"),
        accuracy_best=outcome.get("accuracy_best"),
    )
    return _Network(facts, outcome.get("share"))


def _epochs(lines: list[dict[str, Any]], shares: list[float | None]) -> tuple[Epoch, ...]:
    """The lines of metrics.jsonl. Where no cost is recorded it is that of the network in training: dense, or cut."""
    found: list[Epoch] = []
    last = 1.0
    for line in lines:
        share = shares[line["round"]] if line["phase"] == "finetune" and line["round"] < len(shares) else None
        last = float(line.get("cost_left", last if share is None else share))
        found.append(
            Epoch(
                len(found) + 1, line["phase"], line["round"], line["loss"], line["lr"], last, line.get("accuracy"),
                line.get("test_loss"), line.get("target"), tuple(line["widths"]) if "widths" in line else None,
            )
        )  # fmt: skip
    return tuple(found)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one per line. The last line may be cut off: a killed run was writing it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise ValueError(f"line {number} of {path.name} is not JSON: {error}") from error
    return found
