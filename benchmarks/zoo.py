"""Every network of the zoo: does the cut network compute what the masked one computes, exactly?

    python benchmarks/zoo.py                 # the whole sweep, resumable; hours on two cores
    python benchmarks/zoo.py --only resnet   # names that contain a word
    python benchmarks/zoo.py --table         # the table of what has run

One process a network, one thread each. In float32 at the network's own input size: time and memory of trace plus cut at
half the channels. Then in float64, norm statistics and affines randomised and constant weights drawn again: `masked`
against `cut` at 25, 50 and 75 % kept and two seeds, the fx form once, how much the mask changes the output, and half of the
channels cut with `keep_class=True`: exact too, and of the class of the network?
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "zoo-results"
PEERS = HERE.parent.parent / "shared" / "peers"
TOO_LARGE = {"vit_h_14", "vit_l_16", "vit_l_32", "regnet_y_128gf"}
BEYOND_CLASSIFIERS = ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "r3d_18", "mvit_v2_s")
SHARES, SEEDS = (0.25, 0.5, 0.75), (0, 1)


def names() -> list[str]:
    sys.path.insert(0, str(HERE))
    from stub_torchvision import make_importable

    make_importable()
    import torchvision

    classifiers = [n for n in torchvision.models.list_models(module=torchvision.models) if n not in TOO_LARGE]
    timm_names = (HERE / "timm_models.txt").read_text().split()
    return [f"torchvision:{n}" for n in (*classifiers, *BEYOND_CLASSIFIERS)] + [f"timm:{n}" for n in timm_names]


def one(name: str) -> dict[str, Any]:
    """All checks of one network, in this process."""
    sys.path.insert(0, str(HERE))
    from stub_torchvision import make_importable

    make_importable()
    import torch

    import gator
    from gator import zoo

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = zoo.build(name)
    model = network.model.eval()
    x = torch.randn(network.example_inputs.shape)
    start = time.perf_counter()
    graph = gator.trace(model, x)
    traced = time.perf_counter()
    small = gator.cut(model, graph, draw(graph, 0.5, 0))
    done = time.perf_counter()
    row: dict[str, Any] = {
        "name": name,
        "parameters": graph.parameters,
        "edges": len(graph.edges),
        "share": round(graph.prunable_share, 4),
        "class_kept": type(small) is type(model),
        "trace_s": round(traced - start, 2),
        "cut_s": round(done - traced, 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "unsupported": len(graph.unsupported),
        "commit": commit(),
    }
    del small, graph
    randomise(model)
    x = smallest(model, network.example_inputs).double()
    model = model.double()
    graph = gator.trace(model, x)
    worst, effect = 0.0, float("inf")
    with torch.no_grad():
        plain = model(x)
        with gator.masked(model, graph, {}):
            row["whole"] = gap(plain, model(x))
        for seed in SEEDS:
            for share in SHARES:
                kept = draw(graph, share, seed)
                with gator.masked(model, graph, kept):
                    expected = model(x)
                cuts = [gator.cut(model, graph, kept)]
                if share == 0.5 and seed == 0:
                    cuts.append(gator.cut(model, graph, kept, keep_class=False))
                for candidate in cuts:
                    worst = max(worst, gap(expected, candidate.eval()(x)))
                effect = min(effect, gap(plain, expected))
                predicted = graph_macs(graph, kept)
                counted = gator.measure(cuts[0], x).macs
                if predicted != counted:
                    raise AssertionError(f"predicted {predicted:,} MACs, counted {counted:,} at {share} seed {seed}")
        constrained = gator.trace(model, x, keep_class=True)
        kept = draw(constrained, 0.5, 0)
        with gator.masked(model, constrained, kept):
            expected = model(x)
        small = gator.cut(model, constrained, kept)
        worst = max(worst, gap(expected, small.eval()(x)))
    row |= {"worst": worst, "effect": effect, "input": list(x.shape)}
    row |= {"class_with_keep_class": type(small) is type(model), "share_with_keep_class": round(constrained.prunable_share, 4)}
    row["status"] = "exact" if worst <= 1e-8 and effect > 1e-3 and row["whole"] <= 1e-8 else "wrong"
    return row


def commit() -> str:
    """The state of the code that made a row."""
    command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def draw(graph: Any, share: float, seed: int) -> dict[str, Any]:
    """A random choice of `share` of the units of every edge, at least one."""
    import numpy as np

    random = np.random.default_rng(seed)
    return {e.name: np.sort(random.permutation(e.width)[: max(1, round(share * e.width))]) for e in graph.edges}


def graph_macs(graph: Any, kept: dict[str, Any]) -> int:
    import gator

    return gator.predict_macs(graph, kept)


def randomise(model: Any) -> None:
    """Statistics and affines away from 0 and 1, and weights that are constant (zero-initialised) drawn again."""
    import torch

    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if buffer.dtype.is_floating_point and "running_var" in name:
                buffer.copy_(torch.rand(buffer.shape, generator=random) + 0.5)
            elif buffer.dtype.is_floating_point and "running_mean" in name:
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=random))
        for name, parameter in model.named_parameters():
            constant = bool((parameter == parameter.flatten()[0]).all()) or float(parameter.abs().max()) < 1e-3
            if parameter.ndim > 1 and not constant:
                continue
            scale_like = parameter.ndim <= 1 and not name.endswith("bias") and "token" not in name
            noise = torch.randn(parameter.shape, generator=random)
            parameter.copy_(1 + 0.3 * noise if scale_like else 0.1 * noise)


def smallest(model: Any, example: Any) -> Any:
    """Inputs of 64x64 where the network takes them (space does not matter to the check), else of its own size."""
    import torch

    if example.ndim == 4:
        for size in (64, 96):
            x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
            try:
                with torch.no_grad():
                    model.train()(torch.cat([x, x]))
                    model.eval()(x)
            except Exception:  # whatever a network says to a size it does not take
                continue
            finally:
                model.eval()
            return x
    return torch.randn(example.shape, generator=torch.Generator().manual_seed(0))


def gap(one: Any, other: Any) -> float:
    """The largest difference of two outputs relative to the largest value."""
    import torch
    from torch.utils import _pytree as pytree

    worst = 0.0
    for a, b in zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True):
        if isinstance(a, torch.Tensor):
            if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
                return float("inf")
            worst = max(worst, float((a - b).abs().max() / a.abs().max().clamp_min(1e-30)))
    return worst


def run(name: str) -> None:
    """One network in a process of its own; its row, or its failure, is written when it ends."""
    file = RESULTS / f"{name.replace(':', '_')}.json"
    if file.exists() and json.loads(file.read_text())["status"] == "exact":
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", name]
    start = time.time()
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode == 0:
        row = json.loads(result.stdout.splitlines()[-1])
    else:
        row = {"name": name, "status": "failed", "error": (result.stderr.strip().splitlines() or ["killed"])[-1][:300]}
    file.write_text(json.dumps(row))
    print(f"{row['status']:7} {name}  {time.time() - start:.0f} s  {row.get('error', '')}", flush=True)


def table() -> int:
    rows = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    peers = {}
    for file, source in (("tp_torchvision.csv", "torchvision"), ("tp_timm.csv", "timm")):
        if (PEERS / file).exists():
            with (PEERS / file).open() as lines:
                peers |= {f"{source}:{row['model']}": row for row in csv.DictReader(lines)}
    if not peers:
        print(f"(no {PEERS}: the column of Torch-Pruning is left out)\n")
    columns = "network | result | prunable | edges | class | keep_class=True | trace + cut s | peak MB | worst | effect"
    print(f"| {columns} | Torch-Pruning 1.6 |")
    print("| --- " * (columns.count("|") + 2) + "|")
    for row in rows:
        if row["status"] == "failed":
            print(f"| {row['name']} | failed: {row['error']} | | | | | | | | | {peer(peers.get(row['name']))} |")
            continue
        seconds = row["trace_s"] + row["cut_s"]
        values = (
            row["name"],
            row["status"],
            f"{row['share']:.1%}",
            row["edges"],
            "own" if row["class_kept"] else "fx",
            f"{'own' if row['class_with_keep_class'] else 'fx'}, {row['share_with_keep_class']:.0%}",
            f"{seconds:.1f}",
            row["peak_mb"],
            f"{row['worst']:.0e}",
            f"{row['effect']:.0e}",
            peer(peers.get(row["name"])),
        )
        print(f"| {' | '.join(map(str, values))} |")
    exact = [row for row in rows if row["status"] == "exact"]
    print()
    for source in ("torchvision", "timm"):
        ours = [row for row in rows if row["name"].startswith(source)]
        fine = [row for row in ours if row["status"] == "exact"]
        wide = [row for row in fine if row["share"] >= 0.9]
        theirs = [row for name, row in peers.items() if name.startswith(source) and row["status"] == "ok"]
        print(f"{source}: {len(fine)} of {len(ours)} exact, {len(wide)} with 90 % or more of their parameters prunable")
        print(f"    Torch-Pruning 1.6 on {sum(n.startswith(source) for n in peers)} of them: {len(theirs)} pass")
    if exact:
        default, asked = (sum(row[key] for row in exact) for key in ("class_kept", "class_with_keep_class"))
        print(f"the network's own class: {default} of {len(exact)} by default, {asked} with keep_class=True")
        seconds, slowest = max((row["trace_s"] + row["cut_s"], row["name"]) for row in exact)
        memory, largest = max((row["peak_mb"], row["name"]) for row in exact)
        print(f"slowest: {slowest}, {seconds:.1f} s; most memory: {largest}, {memory} MB")
    return 0 if len(exact) == len(rows) else 1


def peer(row: dict[str, str] | None) -> str:
    if row is None:
        return "not run"
    if row["status"] != "ok":
        return f"{row['status']}: {row['error'][:40]}"
    return f"ok, {float(row['build_s']) + float(row['step_s']):.1f} s, off by {float(row['mask_relerr']):.0e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run names that contain this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="print the table of what has run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one)))
        return 0
    RESULTS.mkdir(exist_ok=True)
    if not options.table:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run, [name for name in names() if options.only in name]))
    return table()


if __name__ == "__main__":
    sys.exit(main())
