"""The examples in docstrings run, and print what they show."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch

import gator
from gator import zoo

MODULES = (
    "gator.atomic_file", "gator.cost.latency.latency", "gator.suggest", "gator.training.reading", "gator.training.recipe",
    "gator.training.report", "gator.training.run", "gator.zoo.data", "gator.zoo.models",
)  # fmt: skip
EXAMPLES = [
    pytest.param(test, id=test.name)
    for module in map(importlib.import_module, MODULES)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"gator": gator, "torch": torch, "zoo": zoo})
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_is_right(example: doctest.DocTest, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL).run(example, out=failures.append)
    assert not failures, "".join(failures)


def test_every_module_has_an_example() -> None:
    names = [test.values[0].name for test in EXAMPLES]
    assert not [module for module in MODULES if not any(name.startswith(f"{module}.") for name in names)]
