"""`onebit explain`: the whole decision, without serving."""

from __future__ import annotations

from typing import Any

import click

from onebit.cli.options import config_options, read_config, this_world
from onebit.cli.output import say, say_json, show_findings
from onebit.config import LoadedConfig
from onebit.findings import InputError, OnebitError, Refusal
from onebit.routes.world import World


@click.command("explain")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print the resolution, or the refusal.")
def command(as_json: bool, **parameters: Any) -> int:
    """Say what `serve` would do with this config, where each value came from, and why.

    Exit status: 0 it would serve, 1 it would refuse, 2 bad usage.
    """
    from onebit.cli.summary import resolution_lines
    from onebit.routes import resolve

    loaded, world = read_config(parameters), this_world()
    try:
        resolution = resolve(loaded, world)
    except (Refusal, InputError) as refusal:
        _show_refusal(loaded, world, refusal, as_json=as_json)
        return 1
    if as_json:
        say_json(resolution)
        return 0
    for line in resolution_lines(resolution):
        say(line)
    return 0


def _show_refusal(
    loaded: LoadedConfig, world: World, refusal: OnebitError, *, as_json: bool
) -> None:
    from onebit.cli.summary import setting_lines, trial_lines
    from onebit.routes import survey
    from onebit.routes.request import settings_of
    from onebit.routes.resolver import request_for

    settings = settings_of(loaded)
    try:
        trials = survey(request_for(loaded, world)).trials
    except Refusal:  # there is no model to ask the routes about
        trials = ()
    if as_json:
        say_json(
            {
                "refused": True,
                "findings": [f.model_dump(mode="json") for f in refusal.findings],
                "trials": [t.model_dump(mode="json") for t in trials],
                "settings": [s.model_dump(mode="json") for s in settings],
            }
        )
        return
    for line in setting_lines(settings):
        say(line)
    if trials:
        say("\nroutes, each asked on its own")
        for line in trial_lines(trials):
            say(line)
    say("\nrefused")
    show_findings(refusal.findings, err=False)
