"""Splits `<think>` blocks from the answer, streamed."""

from __future__ import annotations

OPEN = "<think>"
CLOSE = "</think>"


class ReasoningSplitter:
    """Sends text to the reasoning channel while inside a think block at the answer's start.

    White space just inside the tags and between the block and the answer is dropped. A block
    that never closes is all reasoning. Only a block at the very start counts: the same tag later
    on is the model's own text.
    """

    def __init__(self, *, inside: bool) -> None:
        self._state = "inside_start" if inside else "start"
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Return (reasoning, answer) text that `text` settles."""
        self._held += text
        reasoning = ""
        if self._state == "start":
            self._start()
        if self._state == "inside_start":
            self._held = self._held.lstrip()
            if self._held:
                self._state = "inside"
        if self._state == "inside":
            reasoning = self._inside()
        if self._state == "after":
            self._held = self._held.lstrip()
            if self._held:
                self._state = "answer"
        answer = ""
        if self._state == "answer":
            answer, self._held = self._held, ""
        return reasoning, answer

    def finish(self) -> tuple[str, str]:
        """Return what was held back, as (reasoning, answer)."""
        held, self._held = self._held, ""
        if self._state in ("inside", "inside_start"):
            return held.rstrip(), ""
        return "", held if self._state != "after" else ""

    def _start(self) -> None:
        bare = self._held.lstrip()
        if bare.startswith(OPEN):
            self._held = bare[len(OPEN) :]
            self._state = "inside_start"
        elif not OPEN.startswith(bare):
            self._state = "answer"

    def _inside(self) -> str:
        """Take reasoning text up to the closing tag, holding back what may belong to it."""
        at = self._held.find(CLOSE)
        if at >= 0:
            out, self._held = self._held[:at].rstrip(), self._held[at + len(CLOSE) :]
            self._state = "after"
            return out
        keep = next((n for n in range(len(CLOSE) - 1, 0, -1) if self._held.endswith(CLOSE[:n])), 0)
        settled = self._held[: len(self._held) - keep].rstrip()
        out, self._held = settled, self._held[len(settled) :]
        return out
