"""`python -m gator`: the same as the `gator` command, for launchers that start modules."""

from gator.cli.main import app

app()
