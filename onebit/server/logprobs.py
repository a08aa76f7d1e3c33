"""Log-probabilities in the shapes of the chat and the completions API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onebit.engine import TokenLogprob
from onebit.text import TextModel

_LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def piece_text(text: TextModel, token: int) -> str:
    """Return a token's text; bytes that are no character by themselves show as U+FFFD."""
    return text.tokens.piece(token).decode("utf-8", "replace")


def chat_logprobs(text: TextModel, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the chat API's `logprobs`."""
    return {
        "content": [
            {
                **_one(text, entry.token, entry.logprob),
                "top_logprobs": [_one(text, token, value) for token, value in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def _one(text: TextModel, token: int, value: float) -> dict[str, Any]:
    return {
        "token": piece_text(text, token),
        "logprob": max(value, _LOWEST),
        "bytes": list(text.tokens.piece(token)),
    }


class LegacyLogprobs:
    """The completions API's `logprobs`, grown token by token.

    `text_offset` counts characters of the answer's text, the echoed prompt included.
    """

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._detokenizer = text.detokenizer(special=True)
        self._offset = 0

    def add(self, entries: Sequence[TokenLogprob | None], ids: Sequence[int]) -> dict[str, Any]:
        """Return the object for the next tokens; an entry is None for a prompt's first token."""
        made: dict[str, Any] = {
            "text_offset": [],
            "token_logprobs": [],
            "tokens": [],
            "top_logprobs": [],
        }
        for entry, token in zip(entries, ids, strict=True):
            made["text_offset"].append(self._offset)
            made["tokens"].append(piece_text(self._text, token))
            made["token_logprobs"].append(None if entry is None else max(entry.logprob, _LOWEST))
            made["top_logprobs"].append(None if entry is None else self._top(entry))
            self._offset += len(self._detokenizer.push(token))
        return made

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        made: dict[str, float] = {}
        for token, value in entry.top:
            made.setdefault(piece_text(self._text, token), max(value, _LOWEST))
        made.setdefault(piece_text(self._text, entry.token), max(entry.logprob, _LOWEST))
        return made


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one legacy object of several."""
    keys = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
    return {key: [item for part in parts for item in part[key]] for key in keys}
