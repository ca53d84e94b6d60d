"""A hint for networks that return more than they need to: an output fixes the width of every layer that is tied to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gator.graph.labels import Axes, Labels, LabelSpace

SHARE = 0.2  # of the parameters; below it there is no hint


def pinned_parameters(
    space: LabelSpace, attributes: Mapping[str, Axes], outputs: Mapping[str, Sequence[Labels]]
) -> dict[str, set[str]]:
    """By output, the parameters whose widths it alone fixes; to be called before the outputs are fixed.

    Channels of a single layer do not count: the classes of a classifier are what it is for.
    """
    roots = {output: np.unique(np.concatenate([space.roots(labels) for labels in parts])) for output, parts in outputs.items()}
    every = np.unique(np.concatenate([*roots.values(), np.zeros(1, dtype=np.int64)]))
    touched = {}
    layers = np.zeros(len(every), dtype=np.int64)  # how many layers touch each class
    last = np.full(len(every), -1)
    owners: dict[str, int] = {}
    for name, axes in attributes.items():
        found = [np.searchsorted(every, _among(space.roots(labels), every)) for labels in axes if labels is not None]
        touched[name] = np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
        owner = owners.setdefault(name.rpartition(".")[0], len(owners))
        layers[touched[name]] += last[touched[name]] != owner
        last[touched[name]] = owner
    shared = every[(layers > 1) & (every != 0)]
    return {
        output: {name for name, classes in touched.items() if np.isin(every[classes], _among(own, shared)).any()}
        for output, own in roots.items()
    }


def _among(labels: Labels, allowed: Labels) -> Labels:
    return labels[np.isin(labels, allowed)]


def output_hint(pinned: Mapping[str, set[str]], sizes: Mapping[str, int], outputs: Sequence[str]) -> str:
    """What to say if outputs fix more than a fifth of the parameters, and others do not; empty otherwise."""
    by_output = {output: names for output, names in pinned.items() if names}
    others = [output for output in outputs if output not in by_output]
    share = sum(sizes.get(name, 0) for name in set().union(*by_output.values())) / max(sum(sizes.values()), 1)
    if share <= SHARE or not others:
        return ""
    fixing = f"output {next(iter(by_output))} fixes" if len(by_output) == 1 else f"outputs {', '.join(by_output)} fix"
    return (
        f"the {fixing} the widths of layers with {share:.0%} of the parameters; if only the others matter, say so: "
        f"trace(..., outputs={others})"
    )
