"""`onebit demo`: a small real model, converted once and served."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from onebit.cli.options import config_options, read_config, this_world
from onebit.cli.output import say
from onebit.resources import resource_dir


@click.command("demo")
@config_options
def command(config_file: Path | None, **parameters: Any) -> int:
    """Fetch SmolLM2-135M once, convert it once, serve it, and print a request to try."""
    from onebit.cli.demo_model import with_demo_model
    from onebit.cli.serving import serve

    example = config_file or resource_dir("manifests") / "demo.yaml"
    loaded = read_config({**parameters, "config_file": example})
    if loaded.config.model is None:
        loaded = with_demo_model(loaded, this_world())
    return serve(loaded, this_world, on_ready=_say_how)


def _say_how(name: str, url: str) -> None:
    question = {"role": "user", "content": "What is 2+2?"}
    body = {"model": name, "messages": [question], "temperature": 0}
    say(
        f"try: curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )
