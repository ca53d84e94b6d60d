"""`RandomState`: the state of the random generators of torch, Python and NumPy, to restore it and to see who drew numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class RandomState:
    """The state at the time it is made."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()  # noqa: NPY002

    def drawn_outside_torch(self) -> bool:
        """Whether Python or NumPy has drawn numbers since then. They are no operators, so they are not recorded."""
        _, keys, position, *_ = self._numpy
        now: Any = np.random.get_state()  # noqa: NPY002
        return random.getstate() != self._python or position != now[2] or not np.array_equal(keys, now[1])

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
