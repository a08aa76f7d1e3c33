"""Hostile headers: every finding by its code, and nothing but findings (C01, C03, C07)."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_bytes import container, spec, tensor, write
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onebit.container import Container
from onebit.container.header import parse_header
from onebit.container.header_proof import MAX_FINDINGS
from onebit.findings import Finding, InputError

ONE = tensor("U8", [4], 0, 4)


def findings(path: Path, raw: bytes) -> tuple[Finding, ...]:
    """Return what opening these bytes finds."""
    path.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        Container.open(path)
    assert all(f.mend and f.where.file == str(path) for f in caught.value.findings)
    return caught.value.findings


HOSTILE: list[tuple[str, bytes, str]] = [
    ("container.too_short", b"", "shorter than the 8-byte prefix"),
    ("container.too_short", b"1234567", "has 7 bytes"),
    ("container.header_empty", bytes(100), "header length is 0"),
    (
        "container.header_past_file",
        struct.pack("<Q", 2**63) + b"{}",
        f"at least {2**63 + 8} bytes, but it has 10",
    ),
    (
        "container.header_past_file",
        struct.pack("<Q", 3) + b"{}",
        "at least 11 bytes, but it has 10",
    ),
    ("container.header_not_utf8", container(b'{"\xff": 1}'), "byte 0xFF is not UTF-8"),
    ("container.header_not_json", container('{"a": }'), "Expecting value"),
    ("container.header_not_json", container(b" " * 64), "Expecting value"),
    ("container.header_not_json", container('{"a": NaN}'), "NaN is not a JSON number"),
    ("container.header_not_json", container('{"a": -Infinity}'), "Infinity"),
    ("container.header_not_json", container('{"a": ' + "9" * 5000 + "}"), "5000 digits"),
    ("container.header_not_json", container('{"a": 1.' + "9" * 5000 + "}"), "5002 characters"),
    ("container.header_not_json", container('{"a": 1} x'), "Extra data"),
    ("container.header_not_json", container('{"a\n": 1}'), "Invalid control character"),
    ("container.header_too_deep", container("[" * 100_000), "nest too deep"),
    ("container.header_too_deep", container('{"a":' * 50_000), "nest too deep"),
    ("container.header_too_large", container("[" + "0," * 4_000_001 + "0]"), "at most 4,000,000"),
    ("container.header_not_object", container("[]"), "found a list"),
    ("container.header_not_object", container("null"), "found nothing"),
    ("container.metadata_type", container({"__metadata__": [1]}), "found a list"),
    ("container.metadata_type", container({"__metadata__": {"a": 1}}), "found a number"),
    ("container.metadata_type", container('{"__metadata__": {"a": "\\ud800"}}'), "Unicode"),
    (
        "container.duplicate_metadata",
        container('{"__metadata__": {"a": "1", "a": "2"}}'),
        "a stands there more than once",
    ),
    ("container.bad_name", container({"": ONE}, bytes(4)), "at least one character"),
    ("container.bad_name", container('{"\\ud83d": 1}'), "Unicode text"),
    ("container.entry_type", container({"a": [1, 2]}), "found a list"),
    (
        "container.duplicate_key",
        container('{"a": {"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}'),
        "dtype stands there twice",
    ),
    ("container.dtype", container({"a": tensor("Q9", [4], 0, 4)}, bytes(4)), "unknown dtype Q9"),
    ("container.dtype", container({"a": {"shape": [1], "data_offsets": [0, 1]}}), "dtype nothing"),
    ("container.dtype", container({"a": ONE | {"dtype": 3}}), "unknown dtype a number"),
    ("container.shape", container({"a": ONE | {"shape": [-4]}}), "found [-4]"),
    ("container.shape", container({"a": ONE | {"shape": [4.0]}}), "found [4.0]"),
    ("container.shape", container({"a": ONE | {"shape": [True]}}), "found [true]"),
    ("container.shape", container({"a": ONE | {"shape": [2**64]}}), "found [18446744073709551616]"),
    ("container.shape", container({"a": ONE | {"shape": [1] * 17}}), "at most 16"),
    ("container.shape", container({"a": ONE | {"shape": "4"}}), 'found "4"'),
    ("container.offsets", container({"a": ONE | {"data_offsets": [4, 0]}}), "found [4, 0]"),
    ("container.offsets", container({"a": ONE | {"data_offsets": [-4, 0]}}), "found [-4, 0]"),
    ("container.offsets", container({"a": ONE | {"data_offsets": [0]}}), "found [0]"),
    (
        "container.offsets",
        container('{"a": {"dtype":"U8","shape":[4],"data_offsets":[0,1e999]}}'),
        "found [0, Inf",
    ),
    ("container.offsets", container({"a": ONE | {"data_offsets": None}}), "found null"),
    (
        "container.size",
        container({"a": tensor("F32", [4], 0, 4)}, bytes(4)),
        "make 16 bytes, but data_offsets span 4",
    ),
    (
        "container.size",
        container({"a": tensor("Q4NX", [33, 256], 0, 5120)}, bytes(5120)),
        "make 10240 bytes (a matrix of 4-bit tiles)",
    ),
    (
        "container.truncated",
        container({"a": tensor("U8", [2**50], 0, 2**50)}),
        "past the end: a",
    ),
    (
        "container.overlap",
        container({"a": ONE, "b": tensor("U8", [4], 3, 7)}, bytes(7)),
        "overlap those of a",
    ),
    (
        "container.overlap",
        container({"a": tensor("U8", [9], 0, 9), "b": tensor("U8", [1], 1, 2), "c": ONE}, bytes(9)),
        "overlap",
    ),
]


@pytest.mark.parametrize(
    ("code", "raw", "text"), HOSTILE, ids=[f"{i}-{row[0]}" for i, row in enumerate(HOSTILE)]
)
def test_one_hostile_file_per_finding(tmp_path: Path, code: str, raw: bytes, text: str) -> None:
    found = findings(tmp_path / "model.q4nx", raw)
    assert code in {f.code for f in found}
    assert any(text in f.what for f in found if f.code == code)


def test_the_length_is_never_allocated(tmp_path: Path) -> None:
    """A header length of 8 EB, and one of the whole of a sparse 8 GB file."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "model.q4nx"
    findings(path, struct.pack("<Q", 2**63 - 9) + b"{}")
    path.write_bytes(struct.pack("<Q", 8 * 2**30 - 8))
    os.truncate(path, 8 * 2**30)
    with pytest.raises(InputError, match="at most 100000000 bytes are read"):
        Container.open(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_every_tensor_inside_another_is_named(tmp_path: Path) -> None:
    spans = {"long": (0, 9), "first": (1, 2), "second": (5, 6), "after": (9, 10)}
    tree = {name: tensor("U8", [end - at], at, end) for name, (at, end) in spans.items()}
    found = findings(tmp_path / "model.q4nx", container(tree, bytes(10)))
    assert [f.where.field for f in found] == ["first", "second"]
    assert all("long" in f.what for f in found)


def test_all_findings_come_at_once(tmp_path: Path) -> None:
    tree = {
        "good": ONE,
        "bad.dtype": ONE | {"dtype": "Q9"},
        "bad.shape": tensor("BF16", [3], 4, 8),
        "beyond": tensor("U8", [100], 8, 108),
        "lapping": tensor("U8", [2], 2, 4),
    }
    found = findings(tmp_path / "model.q4nx", container(tree, bytes(8)))
    assert {(f.code, f.where.field) for f in found} == {
        ("container.dtype", "bad.dtype"),
        ("container.size", "bad.shape"),
        ("container.truncated", "beyond"),
        ("container.overlap", "lapping"),
    }


def test_findings_are_bounded(tmp_path: Path) -> None:
    tree = {f"t{i}": 0 for i in range(MAX_FINDINGS + 5000)}
    found = findings(tmp_path / "model.q4nx", container(tree))
    assert len(found) == MAX_FINDINGS + 1
    assert found[-1].code == "container.more"
    assert found[-1].what.startswith("5000 more")


def test_odd_names_are_shown_on_one_line(tmp_path: Path) -> None:
    tree = {"a\x1b[31m\nb": 1, "x" * 5000: 1}
    for found in findings(tmp_path / "model.q4nx", container(tree)):
        assert str(found).isprintable()
        assert len(str(found)) < 600


def small_model(path: Path) -> bytes:
    """Write a container of three tensors and return its bytes."""
    data = np.arange(100, dtype=np.uint8)
    write(
        path,
        spec("model.norm.weight", "BF16", [4], data[:8]),
        spec("model.norm", "U8", [10], data[10:20]),
        spec("lm_head.weight", "I8", [90], data[10:]),
        metadata={"format": "q4nx"},
    )
    return path.read_bytes()


class TestC01Truncated:
    """A half-downloaded file never loads."""

    @pytest.mark.parametrize("keep", [-1, 0.5, 7, 0])
    def test_cut(self, tmp_path: Path, keep: float) -> None:
        whole = small_model(tmp_path / "whole.q4nx")
        size = len(whole) + keep if keep < 0 else keep
        size = int(len(whole) * keep if keep == 0.5 else size)
        found = findings(tmp_path / "model.q4nx", whole[:size])
        assert len(found) == 1
        assert str(size) in found[0].what
        if size < 8:
            assert "shorter than the 8-byte prefix" in found[0].what

    def test_one_byte_short_names_both_sizes(self, tmp_path: Path) -> None:
        whole = small_model(tmp_path / "whole.q4nx")
        (found,) = findings(tmp_path / "model.q4nx", whole[:-1])
        assert found.code == "container.truncated"
        assert found.what == (
            f"the file has {len(whole) - 1} bytes, but its header implies {len(whole)} "
            "(1 missing); past the end: lm_head.weight"
        )
        assert found.where.field == "lm_head.weight"

    def test_every_length_is_refused(self, tmp_path: Path) -> None:
        whole = small_model(tmp_path / "whole.q4nx")
        for size in range(len(whole)):
            assert findings(tmp_path / "model.q4nx", whole[:size])


class TestC03Duplicates:
    """A repeated name is said to be one, whether or not the entries agree."""

    @pytest.mark.parametrize("second", [[0, 4], [4, 8]])
    def test_named(self, tmp_path: Path, second: list[int]) -> None:
        twin = json.dumps(tensor("U8", [4], *second))
        text = f'{{"model.norm.weight": {json.dumps(ONE)}, "model.norm.weight": {twin}}}'
        (found,) = findings(tmp_path / "model.q4nx", container(text, bytes(8)))
        assert found.code == "container.duplicate_tensor"
        assert found.what.startswith("duplicate tensor name model.norm.weight")
        assert found.where.field == "model.norm.weight"

    def test_an_escape_does_not_hide_it(self, tmp_path: Path) -> None:
        text = f'{{"a.b": {json.dumps(ONE)}, "a\\u002eb": {json.dumps(ONE)}}}'
        (found,) = findings(tmp_path / "model.q4nx", container(text, bytes(4)))
        assert found.code == "container.duplicate_tensor"


class TestC07HeaderForms:
    """Odd but legal headers give the same tensors."""

    @pytest.mark.parametrize("form", ["padded", "odd", "metadata", "escaped", "reordered"])
    def test_same_digests(self, tmp_path: Path, form: str) -> None:
        whole = small_model(tmp_path / "plain.q4nx")
        length = int.from_bytes(whole[:8], "little")
        text, data = whole[8 : 8 + length].rstrip(), whole[8 + length :]
        tree = json.loads(text)
        match form:
            case "padded":
                text += b" " * (1 << 17)
            case "odd":
                text += b" " * (7 - len(text) % 8)
                assert len(text) % 2
            case "metadata":
                tree["__metadata__"] = {f"key {i}": "v" * i for i in range(2000)}
                text = json.dumps(tree).encode()
            case "escaped":
                text = text.replace(b"model.norm", b"model\\u002enorm")
            case "reordered":
                text = json.dumps(dict(reversed(tree.items()))).encode()
        path = tmp_path / "model.q4nx"
        path.write_bytes(container(text, data))
        with Container.open(tmp_path / "plain.q4nx") as plain, Container.open(path) as other:
            assert set(other.entries) == {"model.norm.weight", "model.norm", "lm_head.weight"}
            for name in plain.entries:
                assert other.digest(name) == plain.digest(name)
                np.testing.assert_array_equal(other.raw(name), plain.raw(name))
            assert other.entries["model.norm"].nbytes == 10
            assert "model" not in other.entries

    def test_gaps_and_empty_tensors_are_legal(self, tmp_path: Path) -> None:
        tree = {"a": tensor("U8", [1], 5, 6), "none": tensor("F32", [0, 3], 5, 5)}
        path = tmp_path / "model.q4nx"
        path.write_bytes(container(tree, b"\0\0\0\0\0\x07"))
        with Container.open(path) as opened:
            assert opened.raw("a").tolist() == [7]
            assert opened.raw("none").size == 0

    def test_what_nothing_reads_is_a_warning(self, tmp_path: Path) -> None:
        tree = {"a": ONE | {"comment": "x"}, "note": {"text": "hello"}}
        path = tmp_path / "model.q4nx"
        path.write_bytes(container(tree, bytes(4)))
        with Container.open(path) as opened:
            assert [(f.code, f.severity.value, f.where.field) for f in opened.findings] == [
                ("container.entry_key", "warning", "a"),
                ("container.entry_skipped", "warning", "note"),
            ]
            assert list(opened.entries) == ["a"]


def prove(raw: bytes, size: int) -> dict[str, Any] | None:
    """Return the entries of a header, or None when it was refused in one line per finding."""
    refused: tuple[Finding, ...] = ()
    try:
        header = parse_header(raw, "m.q4nx", size)
    except InputError as caught:
        refused = caught.findings
    if refused:
        assert all(str(found).isprintable() for found in refused)
        return None
    for entry in header.entries.values():
        assert 8 + len(raw) <= entry.begin <= entry.end <= size
    return dict(header.entries)


GOOD = json.dumps(
    {
        "__metadata__": {"format": "q4nx"},
        "w": tensor("I8", [2, 5120], 0, 10240),
        "n": tensor("BF16", [256], 10304, 10816),
        "q": tensor("Q4NX", [32, 256], 10816, 15936),
    }
).encode()


def test_the_header_that_is_mutated_below_is_good() -> None:
    entries = prove(GOOD, 8 + len(GOOD) + 15936)
    assert entries is not None
    assert list(entries) == ["w", "n", "q"]


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 2), st.binary(max_size=4)),
        min_size=1,
        max_size=6,
    )
)
def test_mutated_bytes_give_findings_or_sound_entries(
    edits: list[tuple[int, int, bytes]],
) -> None:
    raw = bytearray(GOOD)
    for at, drop, put in edits:
        raw[at : at + drop] = put
    prove(bytes(raw), 8 + len(GOOD) + 15936)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["BF16", "I8", "Q4NX", "F64", "x"]) | json_values,
        "shape": st.lists(st.integers(-1, 2**70) | st.integers(0, 5), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | json_values,
    }
)


@settings(max_examples=300, deadline=None)
@given(tree=st.dictionaries(st.text(max_size=6), entries | json_values, max_size=5) | json_values)
@example(tree={"a": {"dtype": "I8", "shape": [10**18] * 16, "data_offsets": [0, 10**18]}})
def test_invented_trees_give_findings_or_sound_entries(tree: Any) -> None:
    raw = json.dumps(tree).encode()
    prove(raw, 8 + len(raw) + 40)


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=200))
def test_any_file_gives_findings(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.q4nx"
    path.write_bytes(raw)
    with contextlib.suppress(InputError):
        Container.open(path).close()
