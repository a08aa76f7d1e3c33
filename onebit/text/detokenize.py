"""Text from tokens as they come: whole UTF-8 characters only."""

from __future__ import annotations

import codecs

from onebit.text.tokens import TokenBytes

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns token ids into text piece by piece.

    The joined pieces are the text of the whole: a character is given out when its last byte has
    come, bytes that are no UTF-8 become U+FFFD at once, and a character cut off by the end
    becomes one U+FFFD in `finish`.
    """

    def __init__(self, tokens: TokenBytes, *, special: bool = False) -> None:
        self._bytes_of = tokens.piece if special else tokens.visible
        self._decoder = _new_decoder("replace")

    def push(self, token: int) -> str:
        """Return the text that `token` completes; may be empty."""
        return self._decoder.decode(self._bytes_of(token))

    def finish(self) -> str:
        """Return what was held back."""
        return self._decoder.decode(b"", True)
