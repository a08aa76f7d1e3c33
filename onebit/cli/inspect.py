"""`onebit inspect`: the tensor table and the plan in short."""

from __future__ import annotations

from pathlib import Path

import click

from onebit.cli.output import say, say_json, show_findings, size, table
from onebit.cli.summary import plan_lines
from onebit.findings import Severity


@click.command("inspect")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def command(directory: Path, as_json: bool) -> int:
    """Print the tensors of a model DIRECTORY (name, shape, kind, bytes) and its plan in short."""
    from onebit.manifest import inspect_directory

    manifest = inspect_directory(directory)
    if as_json:
        say_json(manifest)
        return 0 if manifest.sound else 1
    for line in _tensor_lines(Path(manifest.path), manifest.plan):
        say(line)
    if manifest.plan is not None:
        say()
        for line in plan_lines(manifest.plan):
            say(line)
    show_findings(f for f in manifest.findings if f.severity is not Severity.NOTE)
    return 0 if manifest.sound else 1


def _tensor_lines(directory: Path, plan: object) -> list[str]:
    from onebit.container import Container
    from onebit.findings import InputError
    from onebit.plan import Plan

    try:
        container = Container.open(directory / "model.q4nx")
    except InputError:
        return []  # the manifest's findings say what is wrong
    used = {}
    if isinstance(plan, Plan):
        layers = [ref for layer in plan.layers for ref in layer.tensors.values()]
        used = {ref.name: ref for ref in [*plan.tensors.values(), *layers]}
    rows = [("tensor", "logical shape", "kind", "stored as", "bytes")]
    for entry in container.entries.values():
        ref = used.get(entry.name)
        rows.append(
            (
                entry.name,
                "x".join(str(d) for d in ref.shape) if ref else "-",
                ref.kind.value if ref else "not used",
                f"{entry.dtype} {'x'.join(str(d) for d in entry.shape)}",
                size(entry.end - entry.begin),
            )
        )
    container.close()
    return table(rows)
