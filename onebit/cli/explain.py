"""`onebit explain`: the whole decision, without serving."""

from __future__ import annotations

from typing import Any

import click

from onebit.cli.options import config_options, read_config, this_world
from onebit.cli.output import say, say_json


@click.command("explain")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print the resolution as JSON.")
def command(as_json: bool, **parameters: Any) -> None:
    """Say what `serve` would do with this config, where each value came from, and why."""
    from onebit.cli.summary import resolution_lines
    from onebit.routes import resolve

    resolution = resolve(read_config(parameters), this_world())
    if as_json:
        say_json(resolution)
        return
    for line in resolution_lines(resolution):
        say(line)
