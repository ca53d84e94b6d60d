"""Run folders with made-up figures, for reports of any size without training."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

from gator.cost.measure import LayerCost
from gator.graph.outline import Outline, OutlineEdge
from gator.training.folder import RunFolder
from gator.training.recipe_file import read_recipe
from gator.training.report import Figures, NetworkRecord, Outcome, Result
from gator.training.watch import Moment


def residual_outline(stages: int, blocks: int, width: int = 16) -> Outline:
    """A residual network: a highway per stage, and an inner edge per block."""
    layers, edges = ["stem"], []
    for stage in range(stages):
        names = [f"layer{stage + 1}.{block}" for block in range(blocks)]
        inner = [f"{name}.conv1" for name in names]
        outer = [f"{name}.conv2" for name in names]
        layers += [layer for pair in zip(inner, outer, strict=True) for layer in pair]
        following = ("head",) if stage == stages - 1 else (f"layer{stage + 2}.0.conv1",)
        writers = (*(("stem",) if stage == 0 else ()), *outer)
        readers = (*(inner if stage == 0 else inner[1:]), *following)
        edges.append(OutlineEdge(writers[0], width << stage, writers, readers, True))
        edges += [OutlineEdge(one, width << stage, (one,), (two,), False) for one, two in zip(inner, outer, strict=True)]
    return Outline((*layers, "head"), tuple(edges))


def made_up_run(
    path: Path, outline: Outline, *, recipe: str = "digits", train: int = 3, prune: int = 4, finetune: int = 3, rounds: int = 1,
    stop_in: int | None = None, changes: tuple[str, ...] = (), runtimes: tuple[str, ...] = ("onnxruntime",), top: float = 99.0,
) -> Path:  # fmt: skip
    """Write a run folder; with `stop_in` the run was interrupted in the middle of the gates of that round."""
    targets = [round(0.7 * 0.7**number, 3) for number in range(rounds)]
    settings = (f"train.epochs={train}", f"prune.epochs={prune}", f"finetune.epochs={finetune}", f"prune.targets={targets}")
    plain = tuple(f"{phase}.{rest}" for phase in ("train", "prune", "finetune") for rest in ("schedule=cosine", "steps=[]"))
    chosen = read_recipe(recipe, [*plain, *settings, *changes])
    machine = {"command": ["gator", "prune", recipe], "python": "3.11", "gpu": None, "versions": {"torch": "2.13"}}
    folder = RunFolder.new(path, chosen, machine)
    moments = [_moment("train", 0, epoch, train, accuracy=top - 60 * math.exp(-epoch / 2)) for epoch in range(1, train + 1)]
    folder.write_outline(outline)
    dense = _record(outline, 1.0, "dense.safetensors", "dense", top)
    folder.record_network(dense)
    outcomes = []
    share = 1.0
    for number, target in enumerate(targets):
        stopped = stop_in == number
        for epoch in range(1, (prune // 2 if stopped else prune) + 1):
            part = share + (target - share) * min(1.0, 1.3 * epoch / prune)
            widths = tuple(_width(edge, part, index) for index, edge in enumerate(outline.edges))
            found = {"cost_left": part, "target": target, "widths": widths}
            moments.append(_moment("prune", number, epoch, prune, top - 2 + part, **found))
        if stopped:
            break
        share = target
        moments += [_moment("finetune", number, epoch, finetune, accuracy=top - 1 + share) for epoch in range(1, finetune + 1)]
        record = _record(outline, share, f"round-{number + 1}.safetensors", f"target {target:.3g}", top - 1 + share)
        folder.record_network(record)
        times = dict.fromkeys(runtimes, 8.0 * (0.2 + 0.8 * share))
        figures = Figures(**{**asdict(record.figures), "latency_ms": 10 * (0.3 + 0.7 * share), "other_runtimes_ms": times})
        outcomes.append(Outcome(record.name, record.file, figures, top - 2, top + 0.1, share))
    with folder.metrics.open("w") as file:
        for moment in moments:
            file.write(json.dumps({"total_steps": 0, **moment.as_json()}) + "\n")
    if stop_in is None:
        before = Figures(**{**asdict(dense.figures), "latency_ms": 10.0, "other_runtimes_ms": dict.fromkeys(runtimes, 8.0)})
        timed = "eager, cpu, 1 thread, float32"
        result = Result(str(path), "100 made-up examples", 4000.0, before, tuple(outcomes), timed, len(outcomes) - 1)
        folder.finish(result.as_json(), str(result))
    return path


def _moment(phase: str, number: int, epoch: int, epochs: int, accuracy: float, **rest: object) -> Moment:
    loss = 2.0 * math.exp(-epoch / 3) + 0.05
    return Moment(phase, number, epoch, epochs, epoch, epochs, loss, 0.01, 1.0, accuracy, loss + 0.1, **rest)  # type: ignore[arg-type]


def _width(edge: OutlineEdge, share: float, index: int) -> int:
    """Of what the edge has; every eighth inner edge loses all of it in the end."""
    kept = max(0.0, share - 0.4 * (1 - share) * (1 + math.sin(index)) / 2)
    if index % 8 == 5 and not edge.highway:
        kept = max(0.0, (share - 0.55) / 0.45)
    return max(round(edge.width * math.sqrt(kept)), 1 if edge.highway else 0)


def _record(outline: Outline, share: float, file: str, name: str, accuracy: float) -> NetworkRecord:
    widths = {edge.name: _width(edge, share, index) if share < 1 else edge.width for index, edge in enumerate(outline.edges)}
    outs = {layer: widths[edge.name] for edge in outline.edges for layer in edge.producers}
    ins = {layer: widths[edge.name] for edge in outline.edges for layer in edge.consumers}
    layers = []
    for layer in outline.layers:
        params = 9 * ins.get(layer, 3) * outs.get(layer, 10)
        if params:
            layers.append(LayerCost(layer, 64 * params, params))
    macs, params = sum(layer.macs for layer in layers), sum(layer.params for layer in layers)
    figures = Figures(accuracy, macs, 2 * macs, params, 4 * params)
    return NetworkRecord(file, name, figures, {} if share == 1 else widths, tuple(layers))
