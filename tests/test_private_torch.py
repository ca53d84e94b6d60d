"""What torch does not document is used through one file, which says so where a torch release lacks it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gator
from gator import private_torch

SOURCES = Path(gator.__file__).parent
ATTRIBUTES = {
    "_schema", "_overloadname", "_cdata", "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks",
    "_input_metadata", "_version", "_base",
}  # fmt: skip


def private_names(code: str) -> list[str]:
    """Imports from torch and attributes of `torch`, `nn` and torch's objects that have a part with one leading underscore."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] == "torch"]
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            ours = name.startswith(("self.", "torch.ops."))
            if not ours and (name.split(".")[0] in ("torch", "nn") or node.attr in ATTRIBUTES):
                found.append(name)
    return [name for name in found if any(part[:1] == "_" != part[1:2] for part in name.split("."))]


def test_private_names_are_found() -> None:
    code = "from torch.utils import _pytree\nimport torch._C\n"
    code += "x = nn.modules.conv._ConvNd, torch.__version__, op._schema, self._base"
    assert private_names(code) == ["torch.utils._pytree", "torch._C", "nn.modules.conv._ConvNd", "op._schema"]


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_only_one_file_uses_private_names(path: Path) -> None:
    names = private_names(path.read_text())
    assert bool(names) == (path.name == "private_torch.py"), names


@pytest.mark.parametrize("name", ["torch.fx.graph_module._forward_from_src", "torch._C._ExcludeDispatchKeyGuard"])
def test_a_release_without_a_name_is_refused(name: str) -> None:
    code = f"import torch, torch.fx.graph_module\ndel {name}\nimport gator\ngator.trace"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-2:]
    assert last[0].startswith(f"gator.errors.UnsupportedTorchError: torch {torch.__version__} lacks a name that gator needs: ")
    assert name.rpartition(".")[2] in last[0]
    assert f"from {private_torch.OLDEST} to {private_torch.NEWEST}" in last[1]
