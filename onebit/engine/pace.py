"""How many prompt rows a step may carry while other sequences generate.

A step with prompt rows takes longer, and every generating sequence waits for it. The pace
measures steps with and without prompt rows and lets in as many rows as keep the extra time within
`stall` times that of a step without any.
"""

from __future__ import annotations

_FIRST_ROWS = 16
_MEASURE_EVERY = 64
_WEIGHT = 0.25


class Pace:
    """Learns step times and turns them into a number of rows.

    Args:
        ceiling: Most prompt rows in any step.
        stall: Most extra time, as a multiple of a step without prompt rows.
    """

    def __init__(self, ceiling: int, stall: float) -> None:
        self._ceiling = ceiling
        self._stall = stall
        self._decode: float | None = None
        self._per_row: float | None = None
        self._most = _FIRST_ROWS
        self._since_measured = 0

    def rows(self, generating: int) -> int:
        """Return the most prompt rows for a step in which `generating` sequences get a token.

        0 asks for one step without prompt rows, to measure it; that is at most every 64th.
        """
        if generating == 0:
            return self._ceiling
        if self._decode is None or self._since_measured >= _MEASURE_EVERY:
            return 0
        rows = min(self._most, self._ceiling)
        if self._per_row is not None:
            rows = min(rows, int(self._stall * self._decode / self._per_row))
        return max(rows, 1)

    def record(self, generating: int, prompt_rows: int, seconds: float) -> None:
        """Take note of a step's time."""
        if generating and prompt_rows == 0:
            self._decode = _blend(self._decode, seconds)
            self._since_measured = 0
        elif generating and self._decode is not None:
            extra = max(seconds - self._decode, 1e-7) / prompt_rows
            # A slower row counts at once: waiting too long is worse than reading slowly.
            blended = _blend(self._per_row, extra)
            self._per_row = max(blended, extra) if extra > 2 * blended else blended
            # Rows get cheaper or dearer with their number, so the chunk grows step by step.
            self._most = max(_FIRST_ROWS, 2 * prompt_rows)
            self._since_measured += 1


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
