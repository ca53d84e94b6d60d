"""Which tensors are one and the same: tied parameters share memory, whatever objects hold them."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from gator.private_torch import FakeTensor, storage_number


def memory_of(tensor: torch.Tensor) -> Hashable:
    """A key that two tensors share if they show the same elements of the same memory. Empty tensors have no memory."""
    if not tensor.numel():
        return id(tensor)
    if without_data(tensor):  # no address to go by: data_ptr() is 0 for all of them
        return (storage_of(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def storage_of(tensor: torch.Tensor) -> int:
    """A number that tensors share if one may be a view of the other."""
    return storage_number(tensor)


def without_data(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a shape and a type but no elements: on the meta device, or fake."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)
