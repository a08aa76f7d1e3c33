"""`onebit forward-serve`: the name and flags under which a container's own file is served."""

from __future__ import annotations

from typing import Any

import click

from onebit.cli.options import config_options, read_config, this_world


@click.command("forward-serve")
@config_options
def command(**parameters: Any) -> int:
    """Serve DIR/model.q4nx: `-m DIR/model.q4nx --kernels DIR -p PORT`.

    The same resolution and the same server as `serve`.
    """
    from onebit.cli.serving import serve

    return serve(read_config(parameters), this_world)
