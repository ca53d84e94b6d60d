"""Which tensors are the same one: tied parameters share memory, even if they are different Python objects."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from gator.private_torch import FakeTensor, storage_number


def memory_of(tensor: torch.Tensor) -> Hashable:
    """A key that is equal for two tensors if they are the same view of the same memory. Empty tensors have no memory."""
    if not tensor.numel():
        return id(tensor)
    if without_data(tensor):  # data_ptr() is 0 for all of them
        return (storage_of(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def storage_of(tensor: torch.Tensor) -> int:
    """A number that is equal for two tensors if one may be a view of the other."""
    return storage_number(tensor)


def without_data(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a shape and a dtype but no data: on the meta device, or a FakeTensor."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)
