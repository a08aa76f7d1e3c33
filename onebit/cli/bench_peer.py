"""Measures llama.cpp on the same GGUF, in rounds that alternate with onebit's own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from onebit.cli.bench_program import ProgramBench
from onebit.cli.bench_server import LONG_PROMPT, ServerSpeed, measure_server
from onebit.findings import DeviceError, UsageError, Where, error

REQUESTS = (1, 8)
DECODE_TOKENS = 64
SLOT_CONTEXT = LONG_PROMPT + 2 * DECODE_TOKENS
TOOLS = ("llama-bench", "llama-server")


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of both, and the median of onebit / peer over the rounds."""

    onebit: float
    peer: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Peer:
    """llama.cpp's programs and the model that it runs."""

    directory: Path
    gguf: Path
    threads: int

    def check(self) -> None:
        """Raise a UsageError when a program or the model is not there."""
        missing = [name for name in TOOLS if not (self.directory / name).is_file()]
        if missing:
            what = f"has no {', '.join(missing)}"
            mend = "give the directory of llama.cpp's programs"
            raise UsageError(error("bench.peer", what, mend, Where(file=str(self.directory))))
        if self.gguf.suffix != ".gguf" or not self.gguf.is_file():
            what = "is no GGUF file, and llama.cpp reads nothing else"
            mend = "bench the GGUF itself, or name the one it was made of: --peer-model FILE.gguf"
            raise UsageError(error("bench.peer_model", what, mend, Where(file=str(self.gguf))))

    def bench(self, prompt: int) -> tuple[float, float]:
        """Return (prefill, decode) in tokens per second, from llama-bench."""
        argv = [
            str(self.directory / "llama-bench"), "-m", str(self.gguf), "-t", str(self.threads),
            "-p", str(prompt), "-n", str(DECODE_TOKENS), "-r", "1", "-o", "json",
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise DeviceError(error("bench.peer_failed", last, f"run it by hand: {' '.join(argv)}"))
        rates = {bool(run["n_prompt"]): float(run["avg_ts"]) for run in json.loads(done.stdout)}
        return rates[True], rates[False]

    def server(self) -> list[str]:
        """Return llama-server's command line."""
        slots = max(REQUESTS)
        return [
            str(self.directory / "llama-server"), "-m", str(self.gguf), "-t", str(self.threads),
            "-c", str(slots * SLOT_CONTEXT), "-np", str(slots), "--host", "127.0.0.1",
            "--port", "{port}",
        ]  # fmt: skip


def onebit_server(model: str, threads: int, numerics: str) -> list[str]:
    """Return onebit's command line for the same work."""
    return [
        sys.executable, "-m", "onebit.cli", "serve", "-m", model, "--host", "127.0.0.1",
        "--port", "{port}", "--threads", str(threads), "--numerics", numerics,
    ]  # fmt: skip


def compare(
    bench: ProgramBench, own_server: list[str], peer: Peer, vocab: int, rounds: int
) -> dict[str, Pair]:
    """Return every figure of both sides, by name.

    Args:
        bench: onebit's program.
        own_server: onebit's server command.
        peer: The other side.
        vocab: Prompts are random ids below this.
        rounds: Times that each side is measured.
    """
    own: list[dict[str, float]] = []
    other: list[dict[str, float]] = []
    for _ in range(rounds):
        own.append(_own_program(bench))
        prefill, decode = peer.bench(bench.prompt)
        other.append({"prefill tok/s": prefill, "decode tok/s": decode})
    for i in range(rounds):
        own[i] |= _server_figures(measure_server(own_server, vocab, REQUESTS))
        other[i] |= _server_figures(measure_server(peer.server(), vocab, REQUESTS))
    return {name: _pair([r[name] for r in own], [r[name] for r in other]) for name in own[0]}


def _own_program(bench: ProgramBench) -> dict[str, float]:
    speed = bench.measure(counts=(1,))
    return {"prefill tok/s": speed.prefill, "decode tok/s": speed.decode[1]}


def _server_figures(speed: ServerSpeed) -> dict[str, float]:
    return {
        "start to ready s": speed.ready,
        f"first token after {LONG_PROMPT} s": speed.first_token,
        **{f"HTTP, {n} at once, tok/s": rate for n, rate in speed.total.items()},
        "anonymous memory MB": speed.anonymous / 1e6,
    }


def _pair(ours: list[float], theirs: list[float]) -> Pair:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Pair(median(ours), median(theirs), median(ratios))
