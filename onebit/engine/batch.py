"""A step's work, and the batch that a program takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit.devices.base import StepBatch
from onebit.engine.sequence import Sequence


@dataclass(slots=True)
class Work:
    """The rows of one sequence in a step: positions `start` to `start + count - 1`."""

    sequence: Sequence
    start: int
    count: int
    generating: bool
    """Whether the row gives a running answer its next token; else the rows read the prompt."""

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self.count

    @property
    def chooses(self) -> bool:
        """Whether the last row's logits choose the sequence's next token."""
        return self.end == self.sequence.length and self.sequence.max_new > 0

    @property
    def logits_start(self) -> int:
        """First position whose logits are wanted; all after it are too, up to `logits_end`."""
        if self.sequence.wants_prompt_logprobs:
            return max(self.start, len(self.sequence.prompt_logprobs_done) - 1)
        return self.end - 1

    @property
    def logits_end(self) -> int:
        """Position after the last whose logits are wanted."""
        if self.end == self.sequence.length:
            return self.end if self.chooses else self.end - 1
        return self.end if self.sequence.wants_prompt_logprobs else self.logits_start


@dataclass(slots=True)
class Step:
    """What the scheduler decided: the work, and the same as a batch."""

    works: list[Work]
    batch: StepBatch
    generating: int
    prompt_rows: int


def build_step(works: list[Work], tables: NDArray[np.int32]) -> Step:
    """Build the batch of `works`.

    Args:
        works: At least one, in the order of their rows.
        tables: [slots, pages] page numbers of every slot, -1 past a sequence's end.
    """
    generating = sum(work.generating for work in works)
    if generating == len(works):
        return _decode_step(works, tables)
    tokens = [work.sequence.tokens[work.start : work.end] for work in works]
    positions = [np.arange(work.start, work.end, dtype=np.int32) for work in works]
    counts = [work.count for work in works]
    wanted: list[int] = []
    row = 0
    for work in works:
        shift = row - work.start
        wanted.extend(range(work.logits_start + shift, work.logits_end + shift))
        row += work.count
    batch = StepBatch(
        tokens=np.concatenate(tokens),
        positions=np.concatenate(positions),
        sequences=np.repeat(np.arange(len(works), dtype=np.int32), counts),
        page_tables=_tables_of(works, tables),
        logits_for=np.array(wanted, np.int32),
    )
    return Step(works, batch, generating, row - generating)


def _decode_step(works: list[Work], tables: NDArray[np.int32]) -> Step:
    rows = np.arange(len(works), dtype=np.int32)
    batch = StepBatch(
        tokens=np.array([work.sequence.tokens[work.start] for work in works], np.int32),
        positions=np.array([work.start for work in works], np.int32),
        sequences=rows,
        page_tables=_tables_of(works, tables),
        logits_for=rows,
    )
    return Step(works, batch, len(works), 0)


def _tables_of(works: list[Work], tables: NDArray[np.int32]) -> NDArray[np.int32]:
    width = max(len(work.sequence.pages) for work in works)
    return np.take(tables[:, :width], [work.sequence.slot for work in works], axis=0)
