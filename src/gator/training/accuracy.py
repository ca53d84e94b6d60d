"""The accuracy of any network that gives scores, in float32: PyTorch or another runtime."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gator.errors import RunError
from gator.training.evaluate import check_scores, to_device
from gator.zoo.data import Loader

_CPU = torch.device("cpu")


def accuracy(scores: Callable[[Tensor], Tensor], loader: Loader, *, channels_last: bool, model: nn.Module | None) -> float:
    """Percent of the test examples that are right.

    channels_last: the layout of the run, in which sums are rounded as they were there; only for `model`, which is moved to it.
    """
    if model is not None and channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    right = seen = 0
    for x, y in loader.batches(0):
        found = scores(to_device(x, _CPU, channels_last and model is not None))
        if not seen:
            check_scores(found, y)
        right, seen = right + int((found.argmax(1) == y).sum()), seen + len(y)
    if not seen:
        raise RunError("there is no test data to evaluate on")
    return 100 * right / seen
