"""Weights from files of every kind, and what is said about those that do not fit."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import gator
from gator import zoo
from gator.training.weights import with_weights


def network():
    return zoo.build("digits:resnet").model


@pytest.mark.parametrize("form", ["safetensors", "plain", "wrapped", "parallel"])
def test_every_form_of_file(form, tmp_path) -> None:
    model = network()
    state = model.state_dict()
    path = tmp_path / ("x.safetensors" if form == "safetensors" else "x.pt")
    if form == "safetensors":
        save_file(state, path)
    elif form == "plain":
        torch.save(state, path)
    elif form == "wrapped":
        torch.save({"epoch": 3, "state_dict": state}, path)
    else:
        torch.save({f"module.{name}": value for name, value in state.items()}, path)
    found = with_weights(network(), path)
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in state.items())


def test_a_cut_network_is_loaded_as_such(tmp_path) -> None:
    model = network()
    graph = gator.trace(model, torch.zeros(1, 1, 8, 8))
    small = gator.cut(model, graph, {"blocks.0.conv1": range(5)})
    gator.save(small, tmp_path / "small.safetensors")
    found = with_weights(network(), tmp_path / "small.safetensors")
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(found.eval()(x), small.eval()(x))


def test_what_does_not_fit_is_named(tmp_path) -> None:
    state = network().state_dict()
    path = tmp_path / "x.safetensors"
    with pytest.raises(gator.FileError, match=r"there is no file .*x.safetensors"):
        with_weights(network(), path)
    save_file({name: value for name, value in state.items() if name != "head.bias"}, path)
    with pytest.raises(gator.FileError, match=r"lacks 'head.bias'"):
        with_weights(network(), path)
    save_file(state | {"more": torch.zeros(1)}, path)
    with pytest.raises(gator.FileError, match="has 'more', which the network does not have"):
        with_weights(network(), path)
    save_file(state | {"head.bias": torch.zeros(3)}, path)
    with pytest.raises(gator.FileError, match=r"'head.bias' has shape \(3,\), the network has \(10,\)"):
        with_weights(network(), path)
    path.write_bytes(b"nothing")
    with pytest.raises(gator.FileError, match="truncated or not a safetensors file"):
        with_weights(network(), path)
    torch.save(network(), tmp_path / "module.pt")
    with pytest.raises(gator.FileError, match="save the state_dict, not the module"):
        with_weights(network(), tmp_path / "module.pt")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(gator.FileError, match="holds a list; expected a state_dict"):
        with_weights(network(), tmp_path / "list.pt")
