"""The recipes that come with Gator, by name. Nothing heavy is imported here: shell completion asks for the names."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).parent.parent / "recipes"


def shipped_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def summary(name: str) -> str:
    """The first sentences of a shipped recipe: the comment that it begins with."""
    lines = []
    for line in (SHIPPED / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)
