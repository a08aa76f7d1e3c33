"""The null device: answers follow from what the pages hold, scripts and contract checks work."""

from __future__ import annotations

import numpy as np
import pytest

from onebit.devices.base import ProgramOptions, StepBatch
from onebit.devices.null import NullScript, emit, open_null
from onebit.findings import DeviceError

OPTIONS = ProgramOptions(context=32, pages=8, page_size=4, max_rows=16)
TEXT = [5, 9, 200, 7, 7, 31, 2, 8, 1]
TABLE = [3, 1, 6]


def batch(tokens, start=0, table=TABLE, logits=None, sequence=0) -> StepBatch:
    count = len(tokens)
    return StepBatch(
        tokens=np.array(tokens, np.int32),
        positions=np.arange(start, start + count, dtype=np.int32),
        sequences=np.full(count, sequence, np.int32),
        page_tables=np.array([table], np.int32),
        logits_for=np.array([count - 1] if logits is None else logits, np.int32),
    )


def whole() -> np.ndarray:
    return open_null(300, OPTIONS).step(batch(TEXT))[0]


def test_chunks_and_pages_do_not_matter() -> None:
    program = open_null(300, OPTIONS)
    program.step(batch(TEXT[:3], table=[7, 0, 2]))
    program.step(batch(TEXT[3:8], 3, table=[7, 0, 2], logits=[]))
    found = program.step(batch(TEXT[8:], 8, table=[7, 0, 2]))
    assert found.dtype == np.float32
    assert (found[0] == whole()).all()


@pytest.mark.parametrize("changed", range(8))
def test_every_earlier_token_matters(changed: int) -> None:
    text = list(TEXT)
    text[changed] += 1
    assert (open_null(300, OPTIONS).step(batch(text))[0] != whole()).any()


@pytest.mark.parametrize("table", [[1, 3, 6], [0, 1, 6], [3, 2, 6]])
def test_wrong_pages_give_wrong_answers(table: list[int]) -> None:
    program = open_null(300, OPTIONS)
    program.step(batch(TEXT[:8]))
    assert (program.step(batch(TEXT[8:], 8, table=table))[0] != whole()).any()


def test_wrong_positions_and_overwritten_pages_give_wrong_answers() -> None:
    program = open_null(300, OPTIONS)
    program.step(batch(TEXT[:8]))
    assert (program.step(batch(TEXT[8:], 9))[0] != whole()).any()
    program = open_null(300, OPTIONS)
    program.step(batch(TEXT[:8]))
    program.step(batch([4], 0, table=[1, -1, -1]))
    assert (program.step(batch(TEXT[8:], 8))[0] != whole()).any()


def test_rows_of_several_sequences() -> None:
    program = open_null(300, OPTIONS)
    both = StepBatch(
        tokens=np.array([*TEXT, 4, 4], np.int32),
        positions=np.array([*range(9), 0, 1], np.int32),
        sequences=np.array([0] * 9 + [1] * 2, np.int32),
        page_tables=np.array([TABLE, [0, -1, -1]], np.int32),
        logits_for=np.array([8, 9, 10], np.int32),
    )
    found = program.step(both)
    assert found.shape == (3, 300)
    assert (found[0] == whole()).all()
    assert (found[1] == open_null(300, OPTIONS).step(batch([4]))[0]).all()


def test_answers_are_varied() -> None:
    program = open_null(300, OPTIONS)
    logits = program.step(batch(TEXT, logits=list(range(9))))
    assert len(set(logits.argmax(axis=1).tolist())) >= 8


def test_emit_says_the_ids_in_order_and_then_the_end() -> None:
    say = emit([7, 7, 8, 7, 9], end=2)
    text = [1, 3]
    for expected in [7, 7, 8, 7, 9, 2]:
        token = say(np.array(text, np.int32))
        assert token == expected
        text.append(token)
    again = emit([4, 6])
    assert [again(np.array(t, np.int32)) for t in ([1], [1, 4], [1, 4, 6], [4, 6, 4])] == [
        4,
        6,
        4,
        6,
    ]


def test_scripted_token_leads_by_far() -> None:
    program = open_null(300, OPTIONS, NullScript(next_token=emit([11], end=2)))
    row = program.step(batch(TEXT))[0]
    assert row.argmax() == 11
    assert np.sort(row)[-1] - np.sort(row)[-2] > 20


def test_scripted_failures_spoil_what_they_wrote() -> None:
    program = open_null(300, OPTIONS, NullScript(fail_at={0}))
    with pytest.raises(DeviceError):
        program.step(batch(TEXT[:8]))
    assert program.alive
    assert (program.step(batch(TEXT[8:], 8))[0] != whole()).any()
    assert (program.step(batch(TEXT))[0] == whole()).all()


def test_death_and_close() -> None:
    program = open_null(300, OPTIONS, NullScript(dead_from=1))
    program.step(batch(TEXT))
    with pytest.raises(DeviceError):
        program.step(batch(TEXT))
    assert not program.alive
    closed = open_null(300, OPTIONS)
    closed.close()
    closed.close()
    with pytest.raises(DeviceError):
        closed.step(batch(TEXT))


def test_records_the_latest_batches() -> None:
    program = open_null(300, OPTIONS, NullScript(record=2))
    for token in range(3):
        program.step(batch([token]))
    assert [b.tokens.tolist() for b in program.batches] == [[1], [2]]
    assert program.steps == 3
    assert program.info.device == "null"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tokens": np.array([5, 300], np.int32)}, "token id"),
        ({"positions": np.array([0, 2], np.int32)}, "gap between rows"),
        ({"positions": np.array([31, 32], np.int32)}, "position"),
        ({"sequences": np.array([1, 0], np.int32)}, "split sequence"),
        ({"page_tables": np.array([[-1] * 9, [-1] * 9], np.int32)}, "page number"),
        ({"page_tables": np.array([[8] * 9, [8] * 9], np.int32)}, "page number"),
        ({"logits_for": np.array([1, 0], np.int32)}, "logits_for"),
        ({"logits_for": np.array([2], np.int32)}, "logits_for"),
    ],
)
def test_broken_batches_are_named(change: dict, complaint: str) -> None:
    fields = {
        "tokens": np.array([5, 6], np.int32),
        "positions": np.array([0, 1], np.int32),
        "sequences": np.array([0, 0], np.int32),
        "page_tables": np.array([[0] * 9, [1] * 9], np.int32),
        "logits_for": np.array([1], np.int32),
    }
    with pytest.raises(ValueError, match=complaint):
        open_null(300, OPTIONS).step(StepBatch(**(fields | change)))
