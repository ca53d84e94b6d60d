"""Loading a damaged file raises FileError or returns a network, nothing else; the model that was passed in never changes.

Bytes are flipped, removed and inserted; values of the JSON are replaced by values of other types, huge or deeply nested ones.
"""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gator


class Tiny(nn.Module):
    """A tiny network with a branch that leaves a constant behind when it is removed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.outer, self.head = (nn.Linear(*sizes) for sizes in ((3, 4), (4, 2), (2, 4), (4, 2)))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        return self.head(torch.relu(x + self.outer(torch.relu(self.inner(x))))) * scale


def saved(folder: Path) -> bytes:
    model = Tiny()
    graph = gator.trace(model, {"x": torch.zeros(2, 3), "scale": 2.0})
    about = gator.About(
        network="digits:resnet",
        input=(3,),
        preprocessing=gator.Preprocessing((8, 8), 8),
        class_names=("a", "b"),
        figures={"macs": 1},
    )
    gator.save(gator.cut(model, graph, {"inner": [], "stem": [0, 2, 3]}), folder / "tiny.safetensors", about=about)
    return (folder / "tiny.safetensors").read_bytes()


def parts(file: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the data behind it."""
    (size,) = struct.unpack("<Q", file[:8])
    return json.loads(file[8 : 8 + size]), file[8 + size :]


def joined(header: str, data: bytes, size: int | None = None) -> bytes:
    text = header.encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


WORDS = ("", "eval", "class", "whole", "stem", "inner", "float64", "stem/linear/0", "__class__", "../x", "os.system", "list",
         "forward", "training", "folded_", "folded_stem")  # fmt: skip
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**9, 2**31, 2**63, -(2**63), 10**400, 1e308, float("nan"), float("inf")]),
    st.text(max_size=4),
    st.sampled_from(WORDS),
    st.lists(st.one_of(st.integers(-2, 9), st.sampled_from(WORDS)), max_size=3),
    st.dictionaries(st.sampled_from((*WORDS, "tensor", "dict")), st.integers(-1, 3), max_size=2),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@st.composite
def damaged_json(draw: st.DrawFn, file: bytes) -> bytes:
    """A few values of the plan replaced, removed, duplicated or renamed."""
    header, data = parts(file)
    content = json.loads(header["__metadata__"]["gator"])
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(content)))
        how = draw(st.sampled_from(["swap", "swap", "swap", "remove", "double", "rename", "other"]))
        if not path:
            content = draw(ODD)
            break
        holder = at(content, path[:-1])
        if how == "swap":
            holder[path[-1]] = draw(ODD)
        elif how == "other":
            holder[path[-1]] = copy.deepcopy(at(content, draw(st.sampled_from(places(content)))))
        elif how == "remove":
            del holder[path[-1]]
        elif how == "double" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))
        elif how == "rename" and isinstance(holder, dict):
            holder[draw(st.text(max_size=3))] = holder.pop(path[-1])
    text = json.dumps(content)
    last = draw(st.sampled_from(["", "", "twice", "deep", "deep argument"]))
    if last == "twice":  # of a key that is there twice the last one counts
        text = text.replace('"kept": {', '"kept": {"stem": [1], ', 1)
    elif last == "deep":
        text = "[" * draw(st.sampled_from([100, 100_000])) + text
    elif last == "deep argument":
        depth = draw(st.sampled_from([100, 900, 100_000]))
        text = text.replace('"scale": 2.0', '"scale": ' + '{"list": [' * depth + "]}" * depth, 1)
    header["__metadata__"]["gator"] = text
    return joined(json.dumps(header), data)


@st.composite
def damaged_header(draw: st.DrawFn, file: bytes) -> bytes:
    """Tensors of other names, types, shapes and lengths; a header of another length than it says."""
    header, data = parts(file)
    name = draw(st.sampled_from([key for key in header if key != "__metadata__"]))
    how = draw(st.sampled_from(["dtype", "shape", "data_offsets", "name", "remove", "size", "data"]))
    size = None
    if how in ("dtype", "shape", "data_offsets"):
        header[name][how] = draw(st.one_of(ODD, st.sampled_from(["F64", "I64", "BOOL", "F16"])))
    elif how == "name":
        header[draw(st.sampled_from(["stem.weight", "new", "", "stem", "head.bias"]))] = header.pop(name)
    elif how == "remove":
        del header[name]
    elif how == "size":
        size = draw(st.sampled_from([0, 1, 7, 10**6, 2**40, 2**63, 2**64 - 1]))
    else:
        data = data[: draw(st.integers(0, len(data)))] + bytes(draw(st.integers(0, 3)))
    return joined(json.dumps(header), data, size)


@st.composite
def damaged_bytes(draw: st.DrawFn, file: bytes) -> bytes:
    """Bytes flipped, removed or inserted; most of the file is its header."""
    changed = bytearray(file)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(changed) - 1))
        how = draw(st.sampled_from(["flip", "flip", "cut", "insert"]))
        if how == "flip":
            changed[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut" and draw(st.booleans()):
            del changed[max(place, 1) :]
        else:
            changed[place:place] = draw(st.binary(min_size=1, max_size=4))
    return bytes(changed)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    torch.manual_seed(0)
    (folder / "undamaged").write_bytes(saved(folder))
    return folder / "tiny.safetensors"


# 30 in the quick profile, 1,000 in that of CI.
EXAMPLES = settings().max_examples if settings().max_examples <= 100 else 5 * settings().max_examples


@settings(deadline=None, derandomize=True, max_examples=EXAMPLES)
@given(st.data(), st.sampled_from([damaged_json, damaged_json, damaged_header, damaged_bytes]))
def test_a_damaged_file_is_an_error_or_a_network(file: Path, data: st.DataObject, damage: Any) -> None:
    file.write_bytes(data.draw(damage((file.parent / "undamaged").read_bytes())))
    model = Tiny()
    before = copy.deepcopy(model.state_dict())
    try:
        network = gator.load(file, model)
    except gator.FileError as error:
        assert str(file) in str(error)
    else:
        assert isinstance(network, nn.Module)
        assert {name: tensor.shape for name, tensor in network.state_dict().items()}
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert "gator_plan" not in model.__dict__
    assert model.training
