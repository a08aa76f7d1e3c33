"""`onebit plan`: derive a directory's plan, show it, write it."""

from __future__ import annotations

from pathlib import Path

import click

from onebit.cli.output import say, say_json, show_findings
from onebit.cli.summary import plan_lines


@click.command("plan")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--write", is_flag=True, help="Write DIRECTORY/plan.json, replacing an old one.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as JSON.")
def command(directory: Path, write: bool, as_json: bool) -> int:
    """Derive the plan of a model DIRECTORY from its family's manifest and its tensors."""
    from onebit.findings import Severity
    from onebit.manifest import inspect_directory
    from onebit.plan import write_plan

    manifest = inspect_directory(directory, stored_plan=False)
    errors = [f for f in manifest.findings if f.severity is Severity.ERROR]
    if manifest.plan is None or errors:
        show_findings(errors)
        return 1
    plan = manifest.plan
    if write:
        path = Path(manifest.path) / "plan.json"
        write_plan(plan, path)
        say(f"wrote {path}")
    elif as_json:
        say_json(plan)
    else:
        for line in plan_lines(plan):
            say(line)
        say("`--write` writes plan.json, `--json` prints it")
    return 0
