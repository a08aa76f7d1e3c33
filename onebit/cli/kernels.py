"""`onebit kernels`: what a directory of NPU kernels holds, and what a model still needs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onebit.cli.output import say, say_json, show_findings, size, table

if TYPE_CHECKING:
    from onebit.plan import Plan


@click.command("kernels")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="A model directory: say which designs it needs and which are missing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(directory: Path, model: Path | None, as_json: bool) -> int:
    """Print the designs in DIRECTORY: role, shape, size, checksum, and what is wrong with them.

    Exit status: 0 the set is complete (for MODEL, if given), 1 it is not, 2 bad usage.
    """
    from onebit.findings import Refusal
    from onebit.routes.npu import ABSENT, have_device

    if not have_device():
        raise Refusal(ABSENT)
    inspect = import_module("onebit.devices.npu.kernels").inspect_kernels
    report = inspect(directory, _plan(model) if model is not None else None)
    if as_json:
        say_json(report)
        return 0 if report.complete else 1
    rows = [("design", "role", "K", "N", "size", "sha256", "state")]
    for design in report.designs:
        state = design.problem or ("needed" if design.needed else "ok")
        rows.append(
            (
                design.name,
                design.role,
                str(design.k),
                str(design.n),
                size(design.bytes),
                design.sha256[:12],
                state,
            )
        )
    for line in table(rows):
        say(line)
    show_findings(report.findings, err=False)
    return 0 if report.complete else 1


def _plan(model: Path) -> Plan:
    from onebit.findings import Refusal, Severity
    from onebit.manifest import inspect_directory

    manifest = inspect_directory(model)
    if manifest.plan is None:
        raise Refusal([f for f in manifest.findings if f.severity is Severity.ERROR])
    return manifest.plan
