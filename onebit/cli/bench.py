"""`onebit bench`: how fast a model runs here, and next to llama.cpp."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onebit.cli.options import config_options, read_config, this_world
from onebit.cli.output import ProgressBar, say, say_json, size, table

if TYPE_CHECKING:
    from onebit.cli.bench_peer import Pair
    from onebit.cli.bench_program import ProgramSpeed


@click.command("bench")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--ops", is_flag=True, help="Add the time of every phase of a step.")
@click.option(
    "--peer",
    type=click.Path(path_type=Path),
    help="Directory with llama-bench and llama-server: measure them in alternating rounds.",
)
@click.option(
    "--peer-model",
    type=click.Path(path_type=Path),
    help="The GGUF that the peer runs, when MODEL is a directory.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@config_options
def command(
    model: str,
    as_json: bool,
    ops: bool,
    peer: Path | None,
    peer_model: Path | None,
    rounds: int,
    **parameters: Any,
) -> int:
    """Measure MODEL: prefill, decode, load, memory, and the share of read bandwidth it uses."""
    from onebit.cli.bench_peer import Peer, compare, onebit_server
    from onebit.cli.bench_program import ProgramBench, memory_of
    from onebit.container import Container
    from onebit.plan import bind
    from onebit.routes import resolve

    begun = time.monotonic()
    resolution = resolve(read_config(parameters | {"set__model": model}), this_world())
    with ProgressBar() as bar:
        session = resolution.open(bar)
    load = time.monotonic() - begun
    info = session.program.info
    other = None
    if peer is not None:
        other = Peer(peer, peer_model or Path(model), info.threads)
        other.check()
    directory = Path(session.resolution.model)
    try:
        with Container.open(directory / "model.q4nx") as container:
            bench = ProgramBench(session.program, session.plan, bind(session.plan, container))
            speed = bench.measure(ops=ops)
            memory = memory_of()
            pairs = {}
            if other is not None:
                own = onebit_server(model, info.threads, info.numerics)
                pairs = compare(bench, own, other, session.plan.vocab, rounds)
    finally:
        session.close()
    report = _report(session.resolution.name, info, speed, load, memory, pairs)
    if as_json:
        say_json(report)
    else:
        _print(report, speed, pairs)
    return 0


def _report(
    name: str,
    info: Any,
    speed: ProgramSpeed,
    load: float,
    memory: dict[str, int],
    pairs: dict[str, Pair],
) -> dict[str, Any]:
    """Return everything as plain data; rates are per second, sizes bytes."""
    return {
        "model": name,
        "device": info.device,
        "numerics": info.numerics,
        "threads": info.threads,
        "detail": info.detail,
        "load_seconds": load,
        "prompt_tokens": speed.prompt,
        "prefill": speed.prefill,
        "first_token_ms": speed.first_token_ms,
        "decode": {str(n): rate for n, rate in speed.decode.items()},
        "bytes_per_token": speed.weight_bytes + speed.kv_bytes,
        "read_bandwidth": speed.read_rate,
        "read_share": speed.read_share,
        "memory": memory,
        "ops": {
            kind: {label: {"calls": c, "seconds": s} for label, (c, s) in phases.items()}
            for kind, phases in speed.ops.items()
        },
        "peer": {
            name: {"onebit": p.onebit, "peer": p.peer, "ratio": p.ratio}
            for name, p in pairs.items()
        },
    }


def _print(report: dict[str, Any], speed: ProgramSpeed, pairs: dict[str, Pair]) -> None:
    where = f"{report['device']} {report['detail'].get('isa', '')}".strip()
    say(f"{report['model']} on {where}, {report['numerics']}, {report['threads']} threads")
    rows = [
        ["load", f"{report['load_seconds']:.2f} s"],
        [f"prefill, {speed.prompt} tokens", f"{speed.prefill:.1f} tok/s"],
        ["first token", f"{speed.first_token_ms:.1f} ms"],
        *([f"decode, {n} at once", f"{rate:.1f} tok/s"] for n, rate in speed.decode.items()),
        ["bytes read per token", size(report["bytes_per_token"])],
    ]
    if speed.read_rate:
        rows += [
            ["read loop", f"{size(int(speed.read_rate))}/s"],
            ["share of it at decode", f"{100 * speed.read_share:.0f} %"],
        ]
    rows += [[f"memory, {kind}", size(count)] for kind, count in report["memory"].items()]
    for line in table(rows, "  "):
        say(line)
    for kind, phases in speed.ops.items():
        _print_phases(kind, phases)
    if pairs:
        say("next to llama.cpp, medians of alternating rounds:")
        lines = [["", "onebit", "llama.cpp", "ratio"]]
        lines += [
            [name, f"{p.onebit:.2f}", f"{p.peer:.2f}", f"{p.ratio:.2f}"]
            for name, p in pairs.items()
        ]
        for line in table(lines, "  "):
            say(line)


def _print_phases(kind: str, phases: dict[str, tuple[int, float]]) -> None:
    total = sum(seconds for _, seconds in phases.values()) or 1.0
    say(f"one {kind} step, {total * 1e3:.2f} ms:")
    ordered = sorted(phases.items(), key=lambda item: -item[1][1])
    rows = [
        [label, f"{calls} x {seconds / calls * 1e6:.1f} us", f"{100 * seconds / total:.1f} %"]
        for label, (calls, seconds) in ordered
        if calls
    ]
    for line in table(rows, "  "):
        say(line)
