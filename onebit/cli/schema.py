"""`onebit schema`: JSON Schemas of the public models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from onebit.cli.output import say, say_json

NAMES = ("serve-config", "container-manifest", "plan", "family", "finding", "resolution")


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one of `NAMES`, with its `$schema` and title."""
    model = _model(name)
    by_alias = model.model_json_schema(mode="validation")
    by_alias["title"] = f"onebit {name}"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **by_alias}


def schema_text(name: str) -> str:
    """Return the text of schemas/<name>.json: the same model gives the same bytes."""
    return json.dumps(schema_of(name), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _model(name: str) -> type[BaseModel]:
    from onebit.config import ServeConfig
    from onebit.families import Family
    from onebit.findings import Finding
    from onebit.manifest import ContainerManifest
    from onebit.plan import Plan
    from onebit.routes import Resolution

    models: dict[str, type[BaseModel]] = {
        "serve-config": ServeConfig,
        "container-manifest": ContainerManifest,
        "plan": Plan,
        "family": Family,
        "finding": Finding,
        "resolution": Resolution,
    }
    return models[name]


@click.command("schema")
@click.argument("name", type=click.Choice(NAMES), required=False)
@click.option(
    "--write",
    "folder",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="Write all schemas into DIR, as schemas/ of the source tree holds them.",
)
def command(name: str | None, folder: Path | None) -> None:
    """Print the JSON Schema NAME, for editors and integrators."""
    if folder is not None:
        for each in NAMES:
            (folder / f"{each}.json").write_text(schema_text(each), encoding="utf-8")
            say(str(folder / f"{each}.json"))
    elif name is None:
        raise click.UsageError(f"name one of {', '.join(NAMES)}, or give --write DIR")
    else:
        say_json(schema_of(name))
