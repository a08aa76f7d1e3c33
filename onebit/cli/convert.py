"""`onebit convert`: a GGUF or a Hugging Face directory becomes a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from onebit.cli.output import ProgressBar, fail, say, say_json, show_findings, size, table
from onebit.findings import UsageError, Where, error

if TYPE_CHECKING:
    from onebit.container import TensorKind
    from onebit.convert import ConvertReport

_SHOWN = 12


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace what is in DIRECTORY.")
@click.option("--verify", is_flag=True, help="Then hold every tensor against the source.")
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="[PATTERN=]KIND",
    help="Store matrices whose name holds PATTERN, or all of them, as KIND (q4_1, q4_k, q8_a, "
    "q8_b, bf16, f32); repeatable, the first match wins. `q8` is `q8_a`.",
)
@click.option("--config-only", is_flag=True, help="Only write the JSON files that are missing.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    source: Path,
    directory: Path,
    force: bool,
    verify: bool,
    types: tuple[str, ...],
    config_only: bool,
    as_json: bool,
) -> int:
    """Convert SOURCE (a GGUF, or a Hugging Face directory with *.safetensors) into DIRECTORY.

    Q4_0, Q4_1, Q4_K and Q8_0 keep their codes; other quantised types become 8-bit tiles. What
    that costs is said for each tensor.
    """
    from onebit.convert import convert_gguf, convert_safetensors, write_config_only

    if config_only:
        for name in write_config_only(source, directory, force=force):
            say(f"wrote {directory / name}")
        return 0
    if verify and source.is_dir():
        what, mend = "holds GGUF conversions against their source", "leave it out"
        raise UsageError(error("convert.verify", what, mend, Where(field="--verify")))
    chosen = [_type(text) for text in types]
    convert = convert_safetensors if source.is_dir() else convert_gguf
    with ProgressBar() as bar:
        report = convert(
            source,
            directory,
            force=force,
            types=chosen,
            progress=lambda done, total: bar("converting", done, total),
        )
    if as_json:
        say_json(report)
    else:
        show_findings(report.findings)
        _show(report)
    return _verify(source, directory) if verify else 0


def _type(text: str) -> tuple[str, TensorKind]:
    from onebit.container import TensorKind
    from onebit.convert import WRITABLE

    pattern, equals, kind = text.rpartition("=")
    pattern = pattern if equals else "*"
    kind = {"q8": "q8_a", "q4": "q4_1"}.get(kind, kind)
    if not pattern or kind not in {k.value for k in WRITABLE}:
        known = ", ".join(k.value for k in WRITABLE)
        what = f"{text!r} is not KIND or PATTERN=KIND with a kind of {known}"
        mend = "for example --type q8, or --type q_proj=q8"
        raise UsageError(error("convert.type_option", what, mend, Where(field="--type")))
    return pattern, TensorKind(kind)


def _show(report: ConvertReport) -> None:
    kept = sum(t.codes_kept for t in report.tensors)
    made = report.requantised
    say(
        f"{report.directory}: {len(report.tensors)} tensors of the {report.family} family, "
        f"{kept} with the source's own codes, {len(made)} quantised anew"
    )
    worst = sorted(made, key=lambda t: -t.relative_rms)
    rows = [
        [t.name, f"{t.source_type} -> {t.kind.value}", f"relative error {t.relative_rms:.2e}"]
        for t in worst[:_SHOWN]
    ]
    for line in table(rows, indent="  "):
        say(line)
    if len(worst) > _SHOWN:
        say(f"  and {len(worst) - _SHOWN} more with smaller errors; --json lists all")
    container = Path(report.directory) / "model.q4nx"
    say(f"model.q4nx: {size(container.stat().st_size)}. Next: onebit serve -m {report.directory}")


def _verify(source: Path, directory: Path) -> int:
    from onebit.convert import verify_gguf

    checks = list(verify_gguf(source, directory))
    bad = [check for check in checks if not check.holds]
    for check in bad:
        fail(
            f"{check.name}: differs from the source by {check.max_error:.3g}, "
            f"{check.bound:.2f} times the rounding bound"
        )
    kept = [c for c in checks if c.codes_kept and c.bound is not None]
    if kept and not bad:
        used = max(c.bound or 0.0 for c in kept)
        say(
            f"verified: all {len(kept)} tensors with kept codes decode within the bfloat16 "
            f"rounding bound of the source (worst uses {used:.2f} of it)"
        )
    rest = [c for c in checks if c not in kept and c.holds]
    if rest:
        worst = max(rest, key=lambda c: c.relative_rms)
        say(
            f"verified: {len(rest)} other tensors, greatest relative error "
            f"{worst.relative_rms:.2e} ({worst.name}, {worst.source_type} -> {worst.kind.value})"
        )
    return 1 if bad else 0
