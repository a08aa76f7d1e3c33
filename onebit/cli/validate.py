"""`onebit validate`: is it servable, on what, and if not, what to type next."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import click
from pydantic import BaseModel, ConfigDict

from onebit.cli.options import this_world
from onebit.cli.output import ProgressBar, say, say_json, show_findings
from onebit.cli.summary import trial_lines
from onebit.config import LoadedConfig, ServeConfig
from onebit.config.sources import Source
from onebit.findings import Finding, Refusal, Severity
from onebit.manifest import ContainerManifest, inspect_directory
from onebit.routes import RouteTrial, Survey, survey
from onebit.routes.resolver import request_for


class Report(BaseModel):
    """What `validate --json` prints."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    servable: bool
    route: str | None
    device: str | None
    why: str
    findings: tuple[Finding, ...]
    routes: tuple[RouteTrial, ...]
    manifest: ContainerManifest | None


@click.command("validate")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--deep", is_flag=True, help="Read every tile, not only headers and samples.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(model: Path, deep: bool, as_json: bool) -> int:
    """Say whether MODEL (a directory or a .gguf file) can be served.

    Exit status: 0 servable, 1 not, 2 bad usage.
    """
    report = examine(model, deep=deep)
    if as_json:
        say_json(report)
    else:
        show(report)
    return 0 if report.servable else 1


def examine(model: Path, *, deep: bool = False) -> Report:
    """Read and check a model, and ask every route about it."""
    loaded = LoadedConfig(ServeConfig(model=model), {"model": Source(kind="flag", name="MODEL")})
    try:
        request = request_for(loaded, this_world())
    except Refusal as refusal:
        return _report(model, Survey((), None, refusal.findings), None)
    with ProgressBar() as bar:
        request = replace(
            request,
            inspect=lambda path: inspect_directory(
                path, deep=deep, progress=lambda d, t: bar("reading tiles", d, t)
            ),
        )
        # Read once and kept: the routes that ask, ask about this very manifest.
        manifest = request.manifest if request.model.kind == "directory" else None
        if manifest is not None:
            request = replace(request, inspect=lambda _: manifest)
        return _report(model, survey(request), manifest)


def _report(model: Path, found: Survey, manifest: ContainerManifest | None) -> Report:
    resolution = found.resolution
    findings = manifest.findings if manifest is not None else ()
    return Report(
        model=str(model),
        servable=resolution is not None,
        route=resolution.route if resolution is not None else None,
        device=resolution.device.device if resolution is not None else None,
        why=resolution.device.why if resolution is not None else "",
        findings=tuple(dict.fromkeys((*findings, *found.findings))),
        routes=found.trials,
        manifest=manifest,
    )


def show(report: Report) -> None:
    """Print a report as text: findings, routes, and the answer with what to type next."""
    show_findings(report.findings, err=False)
    if report.routes:
        say("routes:")
        for line in trial_lines(report.routes, report.findings):
            say(line)
    errors = [f for f in report.findings if f.severity is Severity.ERROR]
    if report.servable:
        say(f"servable: route {report.route} on {report.device or 'a device chosen at the start'}"
            f" ({report.why})")  # fmt: skip
        say(f"next: onebit serve -m {shlex.quote(report.model)}")
        return
    say(f"not servable: {len(errors)} error{'s' if len(errors) != 1 else ''}")
    mends = dict.fromkeys(f.mend for f in errors if f.mend)
    say(f"next: {next(iter(mends))}" if mends else "next: mend the errors above")
