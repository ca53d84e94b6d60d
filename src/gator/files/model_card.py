"""A model card in Markdown: what an exported network is, how good, how its inputs are prepared, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping

from gator.files.about import About
from gator.files.program import Program
from gator.graph.inputs import TensorSpec

_ROWS = (("accuracy", "accuracy %", ".2f"), ("macs", "MACs", ",d"), ("params", "parameters", ",d"), ("bytes", "bytes", ",d"))


def model_card(name: str, about: About, checked: str, program: Program, sums: Mapping[str, str], table: str) -> str:
    """The text of the card of one exported file."""
    origin = f"{about.network}, pruned" if about.network else "A network"
    parts = [f"# {name}", f"{origin} with Gator, exported for another runtime."]
    figures = f"```text\n{table.strip()}\n```" if table.strip() else _figures(about)
    if figures:
        parts += ["## Figures", figures, *([f"Tested on {about.tested_on}."] if about.tested_on else [])]
    parts += ["## Inputs", _inputs(program), _preprocessing(about)]
    if about.class_names:
        parts += ["## Classes", "In the order of the outputs:", ", ".join(f"{i} {n}" for i, n in enumerate(about.class_names))]
    parts += ["## Check", "\n".join(f"- {line}" for line in checked.splitlines())]
    parts += ["## Checksums", "\n".join(f"- `{file}` sha256 `{value}`" for file, value in sums.items())]
    if about.recipe:
        parts += ["## Recipe", f"`gator prune recipe.toml` with:\n\n```toml\n{about.recipe.strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _figures(about: About) -> str:
    lines = []
    for key, title, form in _ROWS:
        if key in about.figures:
            after, before = about.figures[key], about.dense.get(key)
            shown, ratio = (f"{before:{form}}", f"{after / before:.3f}") if before else ("", "")
            lines.append(f"| {title} | {shown} | {after:{form}} | {ratio} |")
    return "\n".join(["| | before | after | ratio |", "| --- | --- | --- | --- |", *lines]) if lines else ""


def _inputs(program: Program) -> str:
    specs = [leaf for leaf in program.inputs.leaves if isinstance(leaf, TensorSpec)]
    shapes = ", ".join(f"{'x'.join(map(str, spec.shape))} {str(spec.dtype).removeprefix('torch.')}" for spec in specs)
    return f"Shape: {shapes}; it takes {program.sizes}."


def _preprocessing(about: About) -> str:
    if about.preprocessing is None:
        return "How inputs are prepared is not recorded."
    values = about.preprocessing.to_data()
    rows = [f"| {key} | {value} |" for key, value in values.items() if key != "in_words"]
    return "\n".join([f"Images: {values['in_words']}.", "", "| key | value |", "| --- | --- |", *rows])
