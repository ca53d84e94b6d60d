"""The cache of the teacher's outputs in benchmarks/cifar10.py."""

from __future__ import annotations

import pytest
import torch
from teacher_outputs import CachedTeacher
from torch import nn


class Counted(nn.Module):
    """A linear layer that counts its calls."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3).to(dtype), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x.to(self.layer.weight.dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_batch_is_computed_once_and_other_weights_have_outputs_of_their_own(dtype, tmp_path) -> None:
    teacher, file, x = Counted(dtype).eval(), tmp_path / "teachers" / "outputs.sqlite", torch.randn(5, 4)
    with torch.no_grad():
        wanted = teacher(x)
        for _ in range(3):  # a process each, in a benchmark
            found = CachedTeacher(teacher, file)(x)
            assert found.dtype == wanted.dtype
            assert torch.equal(found, wanted)
        assert teacher.calls == 2
        assert torch.equal(CachedTeacher(teacher, file)(x + 1), teacher(x + 1))
        other = Counted(dtype).eval()
        assert torch.equal(CachedTeacher(other, file)(x), other(x))
