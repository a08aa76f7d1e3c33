"""`onebit version`."""

from __future__ import annotations

import click

from onebit import __version__
from onebit.cli.output import say


@click.command("version")
def command() -> None:
    """Print the version."""
    say(f"onebit {__version__}")
