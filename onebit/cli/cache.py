"""`onebit cache`: the converted GGUF files."""

from __future__ import annotations

import click

from onebit.cli.options import this_world
from onebit.cli.output import say, say_json, size, table


@click.group("cache")
def command() -> None:
    """List or clear the cache of converted GGUF files."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the entries as JSON.")
def list_entries(as_json: bool) -> None:
    """List the entries with their size and state."""
    from onebit.routes.gguf import open_cache

    cache = open_cache(this_world().cache_dir)
    entries = cache.entries()
    if as_json:
        say_json([entry.model_dump(mode="json") for entry in entries])
        return
    rows = [(size(e.bytes), e.state, e.source or "?", e.path) for e in entries]
    for line in table(rows):
        say(line)
    say(f"{len(entries)} entries, {size(sum(e.bytes for e in entries))} in {cache.root}")


@command.command("clear")
@click.option("--unusable", is_flag=True, help="Only stale and damaged entries.")
def clear(unusable: bool) -> None:
    """Remove the entries. A server that runs on one keeps running."""
    from onebit.routes.gguf import open_cache

    cache = open_cache(this_world().cache_dir)
    removed = cache.clear(unusable_only=unusable)
    say(f"removed {len(removed)} entries, {size(sum(e.bytes for e in removed))}")
