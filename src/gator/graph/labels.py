"""Labels: which positions of which axes are kept or removed together.

Every axis of every value has one label per position; label 0 means "fixed". Ties go into a union-find over labels, which is
vectorised because a network has hundreds of thousands of them. The smallest label of a class is its root, so a class that
contains 0 stays fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Axis = Labels | None  # None: every position is fixed, as on most batch and spatial axes
Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class Tie:
    """One union, kept so that `explain` can say why: labels `left` and `right` were tied by call `call`."""

    left: Labels
    right: Labels
    call: int  # position in the list of all calls; -1 if the tie does not come from a call
    why: str


class LabelSpace:
    """A union-find over labels that records the reason of every tie."""

    def __init__(self) -> None:
        self._parent: Labels = np.zeros(1 << 14, dtype=np.int64)
        self._size = 1  # label 0 is reserved for "fixed"
        self.ties: list[Tie] = []

    def __len__(self) -> int:
        return self._size

    def fresh(self, count: int) -> Labels:
        start, end = self._size, self._size + count
        if end > len(self._parent):
            grown = np.zeros(max(end, 2 * len(self._parent)), dtype=np.int64)
            grown[: self._size] = self._parent[: self._size]
            self._parent = grown
        labels = np.arange(start, end, dtype=np.int64)
        self._parent[start:end] = labels
        self._size = end
        return labels

    def roots(self, labels: Labels) -> Labels:
        parent = self._parent
        roots = parent[labels]
        while True:
            above = parent[roots]
            if np.array_equal(above, roots):
                break
            roots = above
        parent[labels] = roots
        return roots

    def tie(self, left: Labels, right: Labels, call: int, why: str) -> None:
        """Tie two arrays of labels position by position; they are broadcast against each other."""
        left, right = np.broadcast_arrays(left, right)
        left, right = left.ravel(), right.ravel()
        changed = self._union(left, right)
        if changed.any():
            self.ties.append(Tie(left[changed], right[changed], call, why))

    def fix(self, labels: Labels, call: int, why: str) -> None:
        self.tie(labels.ravel(), np.zeros(1, dtype=np.int64), call, why)

    def _union(self, left: Labels, right: Labels) -> NDArray[np.bool_]:
        parent = self._parent
        a, b = self.roots(left), self.roots(right)
        changed: NDArray[np.bool_] = a != b
        while True:
            pending = a != b
            if not pending.any():
                return changed
            low, high = np.minimum(a, b)[pending], np.maximum(a, b)[pending]
            np.minimum.at(parent, high, low)
            a, b = self.roots(left), self.roots(right)

    def table(self) -> Labels:
        """The root of every label, as one array."""
        return self.roots(np.arange(self._size, dtype=np.int64))

    def units(self, labels: Labels, rows: Labels) -> int:
        """How many prunable classes there would be if all labels with the same row number were tied."""
        roots, inverse = np.unique(self.roots(labels.ravel()), return_inverse=True)
        trial = LabelSpace()
        ids = trial.fresh(len(roots))
        if len(roots) and roots[0] == 0:
            ids[0] = 0
        groups = trial.fresh(int(rows.max()) + 1 if rows.size else 0)
        trial._union(ids[inverse], groups[rows.ravel()])
        remaining = np.unique(trial.roots(ids[inverse]))
        return int((remaining != 0).sum())
