"""The documentation tells the truth: its Python runs, its commands exist, its recipes are valid, its links lead somewhere.

All Python blocks of a page run in one process, in their order. A block that is not run is marked with the reason, in a comment
`<!-- not run: ... -->` on the line above it.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- (?P<mark>.*?) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """The code blocks of a page in a language, with the comment above them."""
    return [(m["code"], m["mark"] or "") for m in BLOCK.finditer(page.read_text()) if m["language"] == language]


def commands(page: Path) -> list[str]:
    lines = [line for code, _ in blocks(page, "console") for line in code.splitlines()]
    return [re.split(r" +#| > ", line)[0].removeprefix("$ ") for line in lines if re.match(r"(\$ )?gator ", line)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.trains
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_the_python_of_a_page_runs(page: Path, tmp_path) -> None:
    code = "\n".join(code for code, mark in blocks(page, "python") if not mark.startswith("not run: "))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name_of)
def test_commands_and_options_exist(page: Path) -> None:
    import typer

    from gator.cli.main import commands as all_commands

    for line in commands(page):
        group, words = typer.main.get_command(all_commands()), shlex.split(line)[1:]
        while hasattr(group, "commands"):
            assert words, line
            assert words[0] in group.commands, line
            group, words = group.commands[words[0]], words[1:]
        group.make_context("gator", words)  # raises where an option does not exist


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=name_of)
def test_recipes_are_valid(page: Path) -> None:
    from gator.training.recipe_file import recipe_from_text

    for text, _ in blocks(page, "toml"):
        recipe_from_text(text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in PAGES if ROOT / "docs" in page.parents}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_every_extra_is_named(page: str) -> None:
    section = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", section, re.M)) - {"dev", "docs", "bench"}
    assert extras <= set(re.findall(r"`(\w+)`", (ROOT / page).read_text()))


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    recipes, line = ((tmp_path / page / "index.html").read_text() for page in ("recipes", "command-line"))
    assert "max_drop" in recipes
    assert "--dry-run" in line
    assert "<math" in (tmp_path / "how-it-works" / "index.html").read_text()
