"""Text on a terminal: wrapped between words at its width, and left as it is where the output is not a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap

import typer


def width() -> int:
    """The columns of the terminal; 80 where there is none."""
    return max(shutil.get_terminal_size((80, 24)).columns, 40)


def wrapped(text: str) -> str:
    """The text with its long lines wrapped between words, with a hanging indent; tables and short lines stay as they are."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    if len(line) <= width():
        return line
    indent = line[: len(line) - len(line.lstrip())] + "  "
    return textwrap.fill(
        line, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def say(text: str) -> None:
    """Print a text, wrapped if the output is a terminal."""
    typer.echo(wrapped(text) if sys.stdout.isatty() else text)
