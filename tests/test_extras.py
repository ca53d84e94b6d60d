"""Optional packages: a missing one is told from a broken one."""

from __future__ import annotations

import importlib
import sys

import pytest

import gator
from gator.extras import optional_import


def test_a_missing_package_is_reported_with_its_extra() -> None:
    with pytest.raises(gator.MissingExtraError, match=r"a test needs no_such_package.inside; pip install 'torch-gator\[dev\]'"):
        optional_import("no_such_package.inside", extra="dev", purpose="a test")


@pytest.mark.parametrize(
    "text", ["raise ImportError('a library of another version')", "import no_such_package", "from . import no_such_part"]
)
def test_a_broken_package_is_not_reported_as_missing(text, tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package" / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as raised:
        optional_import("broken_package", extra="dev", purpose="a test")
    assert not isinstance(raised.value, gator.MissingExtraError)
    sys.modules.pop("broken_package", None)


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("lightning", "lightning.pytorch", "lightning"),
        ("transformers", "transformers", "hf"),
        ("ultralytics", "ultralytics", "ultralytics"),
    ],
)
def test_an_integration_names_its_extra(module, package, extra, monkeypatch) -> None:
    for name in (package, package.partition(".")[0]):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"gator.integrations.{module}", raising=False)
    with pytest.raises(gator.MissingExtraError, match=rf"gator.integrations.{module} needs .*'torch-gator\[{extra}\]'"):
        importlib.import_module(f"gator.integrations.{module}")
