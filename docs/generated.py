"""What the documentation takes from the code: the keys of a recipe, and the options of every command; and its equations.

MkDocs calls `on_page_markdown` for every page. A line `<!-- generated: NAME -->` is replaced by what the function NAME returns.
Formulas between dollar signs become MathML, which browsers show without a script.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import tokenize
from io import StringIO
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "src" / "gator"
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = re.sub(r"<!-- generated: (\w+) -->", lambda found: GENERATED[found[1]](), markdown)
    return re.sub(r"^\$\$(.+)\$\$$|\$([^$\n]+)\$", _formula, markdown, flags=re.M) if "$$" in markdown else markdown


def _formula(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    return convert(found[1], display="block") if found[1] else f"<span>{convert(found[2])}</span>"


def recipe_keys() -> str:
    """A table for every table of a recipe, with the comments that stand beside the fields."""
    from gator.training import recipe

    comments = _comments(SOURCE / "training" / "recipe.py")
    parts = ["| key | type | default | |", "| --- | --- | --- | --- |"]
    fields = {field.name: field for field in dataclasses.fields(recipe.Recipe)}
    for name in ("name", "seed"):
        parts.append(_row(fields[name], comments["Recipe"]))
    for name in ("model", "data", "train", "prune", "finetune", "latency", "run"):
        table = getattr(recipe, fields[name].type)
        parts += ["", f"## `[{name}]`", "", table.__doc__.partition("\n")[0], ""]
        own = dataclasses.fields(table)
        if name in ("prune", "finetune"):
            own = tuple(field for field in own if field.name not in {f.name for f in dataclasses.fields(recipe.Phase)})
            parts += ["All keys of `[train]`, and:", ""]
        parts += ["| key | type | default | |", "| --- | --- | --- | --- |"]
        parts += [_row(field, {**comments["Phase"], **comments[table.__name__]}) for field in own]
    return "\n".join(parts)


def _row(field: Any, comments: dict[str, str]) -> str:
    missing = field.default is dataclasses.MISSING
    default = "" if missing else f"`{field.default!r}`" if field.default not in ((), "", None) else ""
    kind = field.type.replace("|", "or").replace("tuple[", "list of ").replace(", ...]", "").replace(" or None", "")
    return f"| `{field.name}` | {kind} | {default or ('required' if missing else '')} | {comments.get(field.name, '')} |"


def _comments(path: Path) -> dict[str, dict[str, str]]:
    """The comment beside each annotated field, or on the lines above it, by class."""
    text = path.read_text()
    beside = {
        token.start[0]: token for token in tokenize.generate_tokens(StringIO(text).readline) if token.type == tokenize.COMMENT
    }
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(text).body:
        for field in (each for each in getattr(node, "body", ()) if isinstance(each, ast.AnnAssign)):
            lines, above = [], field.lineno - 1
            while above in beside and not beside[above].line[: beside[above].start[1]].strip():
                lines.insert(0, beside[above])
                above -= 1
            lines += [beside[field.lineno]] if field.lineno in beside else []
            words = " ".join(token.string.lstrip("# ") for token in lines)
            found.setdefault(node.name, {})[field.target.id] = words.replace("|", "or")
    return found


def command_line() -> str:
    """Every command with its arguments and options, as `--help` shows them."""
    import typer

    from gator.cli.main import commands

    root = typer.main.get_command(commands())
    parts: list[str] = []

    def describe(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for child, each in command.commands.items():
                describe(each, f"{name} {child}")
            return
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        usage = " ".join([name, *(f"[{p.metavar or p.name.upper()}]" for p in arguments), "[OPTIONS]" if options else ""])
        parts.extend([f"## `{name}`", "", command.help or "", "", "```text", usage.strip(), "```", ""])
        parts.extend(["| | what it says |", "| --- | --- |"])
        for p in (*arguments, *options):
            label = p.name.upper() if p in arguments else ", ".join([*p.opts, *p.secondary_opts])
            parts.append(f"| `{label}` | {(p.help or '').replace('|', 'or')} |")
        parts.append("")

    describe(root, "gator")
    return "\n".join(parts)


def results() -> str:
    """The table of benchmarks/cifar10.py."""
    sys.path.insert(0, str(BENCHMARKS))
    from cifar10_table import table

    return table()


GENERATED = {"recipe_keys": recipe_keys, "command_line": command_line, "results": results}
