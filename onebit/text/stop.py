"""Stop strings: found across token borders, none of their text let out."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string appears.

    Text that may be the beginning of a stop string is held back. The result does not depend on
    how the text was cut into pieces: the match that ends first wins, of these the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Return the text that is safe to give out. Sets `matched` when a stop string ended."""
        if not self._stops:
            return text
        held = self._held + text
        best: tuple[int, int] | None = None
        for stop in self._stops:
            at = held.find(stop)
            if at >= 0 and (best is None or (at + len(stop), at) < best):
                best = (at + len(stop), at)
                self.matched = stop
        if best is not None:
            self._held = ""
            return held[: best[1]]
        keep = self._prefix_length(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """Return what was held back: it was no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _prefix_length(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that begins a stop string."""
        best = 0
        for stop in self._stops:
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while at >= 0 and len(text) - at > best:
                if stop.startswith(text[at:]):
                    best = len(text) - at
                    break
                at = text.find(stop[0], at + 1)
        return best
