"""How many prompt rows a step may carry while other sequences generate.

A step with prompt rows takes longer, and every generating sequence waits for it. The pace
measures steps with and without prompt rows and lets in as many rows as keep the extra time within
`stall` times that of a step without any; more when more sequences wait for their prompt than
generate.
"""

from __future__ import annotations

_FIRST_ROWS = 16
_MEASURE_EVERY = 64
_WEIGHT = 0.25
_MOST_STALL = 3.5
"""With the step itself, 4.5: no gap between tokens is to reach five plain steps."""


class Pace:
    """Learns step times and turns them into a number of rows.

    Args:
        ceiling: Most prompt rows in any step.
        stall: Most extra time, as a multiple of a step without prompt rows.
    """

    def __init__(self, ceiling: int, stall: float) -> None:
        self._ceiling = ceiling
        self._stall = stall
        self._decode: dict[int, float] = {}
        """Generating sequences -> seconds of a step of theirs alone."""
        self._per_row: float | None = None
        self._most = _FIRST_ROWS
        self._since_measured = 0

    def rows(self, generating: int, reading: int) -> int:
        """Return the most prompt rows for a step.

        Args:
            generating: Sequences that get a token in it.
            reading: Sequences whose prompt is not read yet.

        0 asks for one step without prompt rows, to measure it: the first of so many sequences, and
        one of 64 later.
        """
        if generating == 0:
            return self._ceiling
        decode = self._decode.get(generating)
        if decode is None or self._since_measured >= _MEASURE_EVERY:
            return 0
        rows = min(self._most, self._ceiling)
        if self._per_row is not None:
            stall = min(self._stall * max(1.0, reading / generating), _MOST_STALL)
            rows = min(rows, int(stall * decode / self._per_row))
        return max(rows, 1)

    def record(self, generating: int, prompt_rows: int, seconds: float) -> None:
        """Take note of a step's time."""
        decode = self._decode.get(generating)
        if generating and prompt_rows == 0:
            self._decode[generating] = _blend(decode, seconds)
            self._since_measured = 0
        elif generating and decode is not None:
            extra = max(seconds - decode, 1e-7) / prompt_rows
            # A slower row counts at once: waiting too long is worse than reading slowly.
            blended = _blend(self._per_row, extra)
            self._per_row = max(blended, extra) if extra > 2 * blended else blended
            # Rows get cheaper or dearer with their number, so the chunk grows step by step.
            self._most = max(_FIRST_ROWS, 2 * prompt_rows)
            self._since_measured += 1


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
