"""SmolLM2 through every entry point: the same bytes, and the known answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.child import Child, free_port, running

PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "Once upon a time")
QUESTION = {
    "messages": [{"role": "user", "content": "What is 2+2?"}],
    "temperature": 0,
    "max_tokens": 40,
}


@contextmanager
def serving(cache: Path, *arguments: str | Path) -> Iterator[Child]:
    port = free_port()
    command = [sys.executable, "-m", "onebit.cli", *map(str, arguments), "--port", str(port)]
    with running(command, port, {"ONEBIT_CACHE_DIR": str(cache)}) as child:
        yield child


def resident_bytes(child: Child) -> int:
    status = Path(f"/proc/{child.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.mark.timeout(600)
def test_every_entry_point_answers_the_same_bytes(
    smollm2: Path, smollm2_source: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    ways = [
        ("serve", "-m", smollm2),
        ("serve", "-m", smollm2_source),  # converts
        ("serve", "-m", smollm2_source),  # restart on the cache
        ("forward-serve", "-m", smollm2 / "model.q4nx"),
    ]
    texts = []
    for arguments in ways:
        with serving(cache, *arguments) as child:
            texts.append([child.complete(prompt, 24) for prompt in PROMPTS])
            chat = child.post("/v1/chat/completions", QUESTION)
            texts[-1].append(chat["choices"][0]["message"]["content"].encode())
            assert resident_bytes(child) < 900e6
    assert texts[0][0].startswith(b" Paris")
    assert texts[0][-1] == b"The answer to this classic math problem is 4."
    assert len(set(texts[0])) == len(texts[0])
    assert all(other == texts[0] for other in texts[1:])
