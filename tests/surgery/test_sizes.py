"""The table of size arguments names arguments that the operators have."""

from __future__ import annotations

import pytest
import torch

from gator.surgery.sizes import _TABLE, size_arguments


@pytest.mark.parametrize("packet", _TABLE, ids=str)
def test_the_arguments_exist(packet) -> None:
    schemas = [getattr(packet, name)._schema for name in packet.overloads()]
    known = {argument.name for schema in schemas for argument in schema.arguments}
    found = size_arguments(packet)
    assert known.issuperset((*found.implied_by_shapes, *found.positions))
    assert found.implied_by_shapes or found.positions


def test_an_operator_that_takes_no_sizes() -> None:
    found = size_arguments(torch.ops.aten.relu)
    assert not found.implied_by_shapes
    assert not found.positions
    assert found.new is None
