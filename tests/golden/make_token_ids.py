"""Makes token_ids.json.gz: what independent tokenisers make of the texts of token_texts.py.

Run in a throw-away environment that has tiktoken, regex, transformers, sentencepiece and protobuf:

    python -m tests.golden.make_token_ids SMOLLM2.gguf LLAMA_TOKENIZE

SmolLM2's ids come from llama.cpp's llama-tokenize on the real GGUF. The other vocabularies are
trained here on the texts themselves: byte-level BPE by tiktoken with the splitting expressions
that tiktoken and transformers hold, and SentencePiece BPE by the sentencepiece library. Control
tokens in a text are cut out before sentencepiece sees it, since it takes them for plain text.
"""

from __future__ import annotations

import ast
import gzip
import inspect
import io
import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
import tiktoken_ext.openai_public as openai
from sentencepiece import sentencepiece_model_pb2
from tiktoken._educational import bpe_train
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from tests.golden.token_texts import TEXTS

STORED = Path(__file__).with_name("token_ids.json.gz")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
BYTE_VOCAB, PIECES = 700, 900
SPECIALS = {
    "gpt-2": (("<|endoftext|>", CONTROL),),
    "qwen2": (
        ("<|endoftext|>", CONTROL),
        ("<|im_start|>", CONTROL),
        ("<|im_end|>", CONTROL),
        ("<tool_call>", USER_DEFINED),
        ("</tool_call>", USER_DEFINED),
    ),
    "llama-bpe": (
        ("<|begin_of_text|>", CONTROL),
        ("<|start_header_id|>", CONTROL),
        ("<|end_header_id|>", CONTROL),
        ("<|eot_id|>", CONTROL),
    ),
    "gpt-4o": (("<|endoftext|>", CONTROL), ("<|im_end|>", CONTROL)),
}
UNREACHABLE = " hqvwj"
"""A token that no merge makes: only a tokeniser that looks a whole word up first finds it."""


def patterns() -> dict[str, str]:
    """Return pre-tokeniser -> splitting expression, as the reference libraries hold it."""
    openai.load_tiktoken_bpe = lambda *_, **__: {}
    return {
        "gpt-2": openai.r50k_pat_str,
        "qwen2": PRETOKENIZE_REGEX,
        "llama-bpe": inspect.signature(TikTokenConverter).parameters["pattern"].default,
        "gpt-4o": openai.o200k_base()["pat_str"],
    }


def printable() -> dict[int, str]:
    """Return GPT-2's byte -> character table."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in kept]
    return {b: chr(b) for b in kept} | {b: chr(256 + n) for n, b in enumerate(rest)}


def byte_level(pre: str, pattern: str) -> dict[str, Any]:
    """Return vocabulary, merges and ids of one byte-level BPE."""
    trained = bpe_train("\n".join(TEXTS), BYTE_VOCAB, pattern, visualise=None)
    tokens = sorted(trained, key=trained.__getitem__)
    if pre == "llama-bpe":
        assert UNREACHABLE.encode() not in trained
        tokens.append(UNREACHABLE.encode())
    ranks = {token: rank for rank, token in enumerate(tokens)}
    specials = {name: len(tokens) + n for n, (name, _) in enumerate(SPECIALS[pre])}
    coder = tiktoken.Encoding(pre, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
    table = printable()

    def shown(token: bytes) -> str:
        return "".join(table[b] for b in token)

    texts = [unicodedata.normalize("NFC", t) if pre == "qwen2" else t for t in TEXTS]
    return {
        "model": "gpt2",
        "tokens": [*map(shown, tokens), *specials],
        "types": [NORMAL] * len(tokens) + [kind for _, kind in SPECIALS[pre]],
        "merges": [
            f"{shown(token[:cut])} {shown(token[cut:])}"
            for token in tokens
            for cut in range(1, len(token))
            if token[:cut] in ranks and token[cut:] in ranks
        ],
        "ids": [coder.encode(text, allowed_special="all") for text in texts],
    }


def sentencepiece_bpe(*, prefix: bool) -> dict[str, Any]:
    """Return pieces, scores and ids of one SentencePiece BPE."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for t in TEXTS for line in t.splitlines() if line),
        model_writer=model,
        model_type="bpe",
        vocab_size=PIECES,
        hard_vocab_limit=False,
        character_coverage=0.98,
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
        user_defined_symbols=[] if prefix else ["<tool_call>", "\n\n", "\u2581\u2581"],
        num_threads=1,
        minloglevel=2,
    )
    coder = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue()).pieces
    # A GGUF holds the user's own pieces as they stand in a text: with real spaces.
    tokens = [p.piece.replace("\u2581", " ") if p.type == USER_DEFINED else p.piece for p in pieces]
    control = {p.piece: n for n, p in enumerate(pieces) if p.type in (UNKNOWN, CONTROL)}
    cut = re.compile("(" + "|".join(map(re.escape, control)) + ")")

    def encode(text: str) -> list[int]:
        parts = [[control[p]] if p in control else coder.encode(p) for p in cut.split(text) if p]
        return [index for part in parts for index in part]

    return {
        "model": "llama",
        "tokens": tokens,
        "types": [p.type for p in pieces],
        "scores": [p.score for p in pieces],
        "prefix": prefix,
        "ids": [encode(text) for text in TEXTS],
    }


def smollm2(gguf: str, program: str) -> list[list[int]]:
    """Return llama.cpp's ids; it refuses an empty text, which has none."""
    command = [program, "-m", gguf, "--ids", "--no-escape", "--log-disable", "-p"]

    def encode(text: str) -> list[int]:
        ran = subprocess.run([*command, text], check=True, capture_output=True, text=True)
        return ast.literal_eval(ran.stdout)

    return [encode(text) if text else [] for text in TEXTS]


def main(gguf: str, program: str) -> None:
    """Write token_ids.json.gz."""
    stored: dict[str, Any] = {pre: byte_level(pre, p) for pre, p in patterns().items()}
    stored["prefixed"] = sentencepiece_bpe(prefix=True)
    stored["unprefixed"] = sentencepiece_bpe(prefix=False)
    stored["smollm2"] = {"ids": smollm2(gguf, program)}
    text = json.dumps(stored, ensure_ascii=True, separators=(",", ":"))
    STORED.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
