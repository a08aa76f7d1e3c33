"""From token ids to the bytes they stand for, one token at a time."""

from __future__ import annotations

import re
from typing import Any, Literal, Protocol

from onebit.findings import InputError, Where, error

Style = Literal["byte_level", "metaspace"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary(Protocol):
    """The part of a tokenizer that this module uses."""

    def id_to_token(self, id: int) -> str | None:
        """Return the stored text of token `id`, or None."""
        ...


class TokenBytes:
    """The bytes of every token, found when first asked for.

    Byte-level vocabularies spell each byte as one printable character; SentencePiece-like ones
    use U+2581 for a space and `<0xNN>` for a byte. Added tokens are stored as plain text in both,
    so they bypass the byte map.
    """

    def __init__(self, vocabulary: Vocabulary, tokenizer_json: dict[str, Any], file: str) -> None:
        self._vocabulary = vocabulary
        self._style = decoder_style(tokenizer_json, file)
        self._plain: dict[int, bytes] = {}
        special: set[int] = set()
        for token in tokenizer_json.get("added_tokens") or []:
            self._plain[token["id"]] = token["content"].encode()
            if token.get("special"):
                special.add(token["id"])
        self.special = frozenset(special)
        self._known: dict[int, bytes] = {}

    def piece(self, token: int) -> bytes:
        """Return the bytes of `token`, special tokens included; b"" for ids without a token."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._find(token)
        return known

    def visible(self, token: int) -> bytes:
        """Return the bytes that `token` adds to an answer: nothing for special tokens."""
        return b"" if token in self.special else self.piece(token)

    def _find(self, token: int) -> bytes:
        if token in self._plain:
            return self._plain[token]
        text = self._vocabulary.id_to_token(token)
        if text is None:
            return b""
        if self._style == "byte_level":
            return b"".join(_BYTE_OF.get(c) or c.encode() for c in text)
        if match := _BYTE_TOKEN.fullmatch(text):
            return bytes([int(match[1], 16)])
        return text.replace("\u2581", " ").encode()


def decoder_style(tokenizer_json: dict[str, Any], file: str) -> Style:
    """Return how the tokenizer's decoder spells bytes.

    Raises:
        InputError: the decoder is none of the kinds that onebit knows.
    """
    decoder = tokenizer_json.get("decoder") or {}
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return "byte_level"
    if "Metaspace" in kinds or "ByteFallback" in kinds:
        return "metaspace"
    if any(s.get("type") == "Replace" and s.get("content") == " " for s in steps):
        return "metaspace"
    raise InputError(
        error(
            "text.decoder",
            f"The tokenizer's decoder is {sorted(map(str, kinds))}; expected ByteLevel, "
            "Metaspace or ByteFallback.",
            "Convert the model again from its GGUF, or take its publisher's tokenizer.json.",
            Where(file=file, field="decoder"),
        )
    )


def _byte_characters() -> dict[str, bytes]:
    """Return the byte-level alphabet: printable bytes stand for themselves, others from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in printable)
    alphabet = {chr(b): bytes([b]) for b in printable}
    alphabet.update({chr(0x100 + i): bytes([b]) for i, b in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_characters()
