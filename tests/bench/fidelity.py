"""How far each arithmetic, and llama.cpp, are from float32 on the same GGUF.

Needs torch, transformers and llama.cpp's llama-perplexity; run in a throw-away environment:

    python -m tests.bench.fidelity MODEL.gguf CONTAINER_DIR TEXT_FILE LLAMA_BIN_DIR

The reference is transformers in float32 on the GGUF's own dequantised weights. Texts are read in
chunks of 512 tokens; positions of each second half count. Printed per candidate: mean and median
KL(reference || candidate) in nats, and the share of positions with the same most likely token.
onebit's figures hold what the container's bfloat16 scales cost, too.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from tests.fixtures.programs import prefill, program_on

CONTEXT, CHUNKS = 512, 8
COUNTED = slice(CONTEXT // 2, CONTEXT - 1)
Logs = NDArray[np.float64]


def log_softmax(logits: NDArray[np.float32]) -> Logs:
    """Return log-probabilities [rows, vocab]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def llama_logs(
    gguf: Path, text: Path, binaries: Path
) -> tuple[NDArray[np.int32], list[NDArray[np.uint16]], int]:
    """Return llama.cpp's tokens [chunks, 512], its packed log-probabilities and the vocabulary.

    File layout: llama-perplexity's `--kl-divergence-base`: magic, three int32, the tokens, then
    per row a float32 scale, a float32 least value and one uint16 for each token.
    """
    with tempfile.NamedTemporaryFile() as file:
        command = [
            binaries / "llama-perplexity", "-m", gguf, "-f", text, "-c", str(CONTEXT), "-t", "2",
            "--chunks", str(CHUNKS), "--kl-divergence-base", file.name,
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        raw = Path(file.name).read_bytes()
    context, vocab, chunks = struct.unpack_from("<iii", raw, 8)
    tokens = np.frombuffer(raw, "<i4", context * chunks, 20).reshape(chunks, context)
    width = 2 * ((vocab + 1) // 2) + 4
    packed = np.frombuffer(raw, "<u2", -1, 20 + 4 * tokens.size).reshape(chunks, -1, width)
    return tokens, list(packed), vocab


def unpack(packed: NDArray[np.uint16], vocab: int) -> Logs:
    """Return normalised log-probabilities of one chunk."""
    head = np.ascontiguousarray(packed[:, :4]).view("<f4").astype(np.float64)
    logs = head[:, 1:2] + head[:, 0:1] * packed[:, 4 : 4 + vocab]
    return logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))


def main(gguf: Path, container: Path, text: Path, binaries: Path) -> None:
    """Measure and print."""
    tokens, packed, vocab = llama_logs(gguf, text, binaries)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    found: dict[str, list[NDArray[np.float64]]] = {}
    with ExitStack() as stack:
        programs = {
            f"onebit {n}": stack.enter_context(program_on(container, "cpu", n, context=CONTEXT))
            for n in ("f32", "i16", "i8")
        }
        for ids, llama in zip(tokens, packed, strict=True):
            with torch.no_grad():
                logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()
            reference = log_softmax(logits[COUNTED, :vocab])
            candidates = {"llama.cpp": unpack(llama, vocab)}
            for name, program in programs.items():
                candidates[name] = log_softmax(prefill(program, ids.tolist(), 128)[COUNTED])
            for name, logs in candidates.items():
                divergence = (np.exp(reference) * (reference - logs)).sum(axis=1)
                same = reference.argmax(axis=1) == logs.argmax(axis=1)
                found.setdefault(name, []).append(np.stack([divergence, same]))
    for name, parts in found.items():
        divergence, same = np.concatenate(parts, axis=1)
        print(
            f"{name:12} {len(same)} positions  KL mean {divergence.mean():.2e} "
            f"median {np.median(divergence):.2e}  same top token {same.mean():.1%}"
        )


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:5]))
