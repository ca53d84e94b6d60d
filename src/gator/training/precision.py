"""Mixed precision with torch.amp: autocast in the forward pass and, for float16, a loss that is scaled before backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gator.training.recipe import PrecisionName

_DTYPES: dict[PrecisionName, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """What the forward pass computes in, and the gradient scaler that float16 needs; "no" leaves everything in float32."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self._device, self._dtype = device, _DTYPES.get(name)
        self._scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, dtype=self._dtype)

    def backward(self, loss: Tensor) -> None:
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: Optimizer, parameters: list[nn.Parameter], *, clip: float) -> None:
        """One step of the optimizer with gradients of norm `clip` at most (0: any); the scaler skips it after an overflow."""
        if clip:
            if self._scaler is not None:
                self._scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, clip)
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; empty without a scaler."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
