"""`onebit serve`."""

from __future__ import annotations

from typing import Any

import click

from onebit.cli.options import config_options, read_config, this_world


@click.command("serve")
@config_options
def command(**parameters: Any) -> int:
    """Serve a model over the OpenAI API."""
    from onebit.cli.serving import serve

    return serve(read_config(parameters), this_world)
