"""Functions in a user's own file: it is imported as Python would import it, and installed modules stay what they are."""

from __future__ import annotations

import importlib
import pickle
import sys

import pytest
import torch

import gator
from gator import zoo

INPUT = torch.zeros(1, 3)


@pytest.fixture(autouse=True)
def _path_and_modules_as_before():
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_dataclass_with_postponed_annotations(tmp_path) -> None:
    (tmp_path / "net.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "import torch\n"
        "@dataclass\n"
        "class Settings:\n"
        "    inputs: int = 3\n"
        "    kind: ClassVar[str] = 'linear'\n"
        "def make():\n"
        "    return torch.nn.Linear(Settings().inputs, 2)\n"
    )
    assert zoo.build(f"{tmp_path}/net.py:make", example_inputs=INPUT).model.in_features == 3


def test_a_module_beside_it_that_is_imported_when_it_is_needed(tmp_path) -> None:
    (tmp_path / "sizes_of_mine.py").write_text("width = 5\n")
    (tmp_path / "scale_of_mine.py").write_text("factor = 2.0\n")
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        from scale_of_mine import factor\n"
        "        return factor * super().forward(x)\n"
        "def make():\n"
        "    from sizes_of_mine import width\n"
        "    return Net(3, width)\n"
    )
    model = zoo.build(f"{tmp_path}/net.py:make", example_inputs=INPUT).model
    assert model(INPUT).shape == (1, 5)


def test_a_module_beside_it_comes_before_others_of_its_name(tmp_path, monkeypatch) -> None:
    """The folder of the file is searched first, as with `python file.py`, not a folder that is on the path already."""
    for folder, width in (("other", 4), ("mine", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sizes_of_mine.py").write_text(f"width = {width}\n")
    (tmp_path / "mine" / "net.py").write_text(
        "import torch\ndef make():\n    from sizes_of_mine import width\n    return torch.nn.Linear(3, width)\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "other")
    assert zoo.build(f"{tmp_path}/mine/net.py:make", example_inputs=INPUT).model.out_features == 5


def test_installed_modules_of_the_same_name_stay(tmp_path) -> None:
    for name in ("colorsys", "tabnanny"):
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(3, 2)\n")
    assert zoo.build(f"{tmp_path}/colorsys.py:make", example_inputs=INPUT).model.in_features == 3
    assert importlib.import_module("colorsys").rgb_to_yiq(0, 0, 0) == (0, 0, 0)
    assert not importlib.import_module("tabnanny").__file__.startswith(str(tmp_path))


def test_two_files_of_one_name(tmp_path) -> None:
    models = []
    for width in (4, 5):
        folder = tmp_path / str(width)
        folder.mkdir()
        (folder / "net.py").write_text(
            f"import torch\nclass Net(torch.nn.Linear):\n    pass\ndef make():\n    return Net(3, {width})\n"
        )
        models.append(zoo.build(f"{folder}/net.py:make", example_inputs=INPUT).model)
    assert [model.out_features for model in models] == [4, 5]
    assert sys.modules[type(models[0]).__module__] is not sys.modules[type(models[1]).__module__]


def test_its_classes_can_be_pickled(tmp_path) -> None:
    """As the workers of a DataLoader need it where processes are spawned."""
    (tmp_path / "net_to_pickle.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    pass\ndef make():\n    return Net(3, 2)\n"
    )
    model = zoo.build(f"{tmp_path}/net_to_pickle.py:make", example_inputs=INPUT).model
    assert type(model).__module__ == "net_to_pickle"
    assert type(pickle.loads(pickle.dumps(model))) is type(model)


def test_a_file_that_fails_leaves_no_module(tmp_path) -> None:
    (tmp_path / "broken_net.py").write_text("import nothing_like_this\n")
    with pytest.raises(gator.ModelNameError, match="cannot be imported: ModuleNotFoundError"):
        zoo.build(f"{tmp_path}/broken_net.py:make")
    assert not any("broken_net" in name for name in sys.modules)


def test_a_changed_file_is_read_again(tmp_path) -> None:
    file = tmp_path / "net.py"
    for width in (7, 11):
        file.write_text(f"import torch\ndef make():\n    return torch.nn.Linear(3, {width})\n")
        assert zoo.build(f"{file}:make", example_inputs=INPUT).model.out_features == width
