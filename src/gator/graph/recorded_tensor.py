"""A tensor without data, as a recording passes it through a model: it has a shape, a dtype and a device.

Its data may be known, if it depends on constants alone, or assumed (assumptions.py says when); then code may read it.
"""

from __future__ import annotations

from typing import Any

import torch

from gator.errors import TraceError
from gator.graph.assumptions import Assumed, Reason
from gator.private_torch import make_wrapper_subclass, no_torch_function


class RecordedTensor(torch.Tensor):
    """A tensor without data that is used while recording: shape, dtype and device."""

    meta_tensor: torch.Tensor  # a tensor on the meta device with the same shape, strides and dtype
    value: int
    known_data: torch.Tensor | None  # its data, if it depends on constants alone, or if it is assumed
    reason: Reason  # why its data is assumed

    __torch_function__ = no_torch_function  # type: ignore[assignment]

    @staticmethod
    def make(meta_tensor: torch.Tensor, value: int, device: torch.device) -> RecordedTensor:
        self = make_wrapper_subclass(
            RecordedTensor,
            meta_tensor.shape,
            strides=meta_tensor.stride(),
            storage_offset=meta_tensor.storage_offset(),
            dtype=meta_tensor.dtype,
            device=device,
            requires_grad=False,
        )
        self.meta_tensor, self.value, self.known_data, self.reason = meta_tensor, value, None, ""
        return self

    def know(self, assumed: Assumed | None) -> None:
        self.known_data, self.reason = (None, "") if assumed is None else (assumed.data, assumed.reason)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"tensor(..., size={tuple(self.shape)}, dtype={self.dtype})"  # messages may name a tensor

    def tolist(self) -> Any:
        if self.known_data is not None and not self.reason:
            return self.known_data.tolist()
        return self.reshape(-1)[0].item() if self.numel() else torch.empty(self.shape).tolist()  # item() raises an error

    def __format__(self, format_spec: str) -> str:
        return repr(self)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise TraceError(f"a tensor of the recording was used after it ended, by {func}; the network keeps state between calls")
