"""The examples in docstrings run, and print what they show; every public function has one."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest
import torch

import gator
from gator import zoo

OTHERS = (
    "gator.atomic_file",
    "gator.suggest",
    "gator.cost.target",
    "gator.graph.select_layers",
    "gator.zoo.data",
    "gator.zoo.models",
)
NAMES = {"gator": gator, "torch": torch, "zoo": zoo}
PUBLIC = [getattr(gator, name) for name in gator.__all__]
MODULES = sorted({thing.__module__ for thing in PUBLIC} | set(OTHERS))
EXAMPLES = [
    pytest.param(test, id=test.name)
    for module in map(importlib.import_module, MODULES)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=NAMES)
    if test.examples
]


def Network() -> torch.nn.Module:
    return zoo.build("digits:resnet").model.eval()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_is_right(example: doctest.DocTest, tmp_path, monkeypatch) -> None:
    """Examples may use a network, its class, its graph and a cut of it without making them."""
    monkeypatch.chdir(tmp_path)
    model, x = Network(), torch.randn(2, 1, 8, 8)
    graph = gator.trace(model, x)
    small = gator.cut(model, graph, {"stem": range(8)})
    example.globs.update(Network=Network, model=model, x=x, graph=graph, small=small)
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL).run(example, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("function", [thing for thing in PUBLIC if inspect.isfunction(thing)], ids=lambda f: f.__name__)
def test_every_public_function_has_an_example(function) -> None:
    assert ">>>" in inspect.getdoc(function), f"{function.__module__}.{function.__name__} shows no example"
