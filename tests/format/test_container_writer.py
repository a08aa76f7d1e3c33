"""The writer: golden bytes, determinism, atomic replacement."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from container_bytes import spec, write
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.container import Container, TensorSpec, write_container
from onebit.findings import InputError


def test_golden_bytes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.q4nx",
        spec("b", "U8", [3], b"\x01\x02\x03"),
        spec("a.é", "BF16", [1], b"\x80\x3f"),
        metadata={"z": "1", "format": "q4nx"},
    )
    text = (
        '{"__metadata__":{"format":"q4nx","z":"1"},'
        '"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},'
        '"a.é":{"dtype":"BF16","shape":[1],"data_offsets":[64,66]}}'
    ).encode()
    assert len(text) == 153
    header = (184).to_bytes(8, "little") + text.ljust(184)
    assert path.read_bytes() == header + b"\x01\x02\x03" + bytes(61) + b"\x80\x3f"


def test_no_metadata_no_key(tmp_path: Path) -> None:
    raw = write(tmp_path / "m.q4nx", spec("a", "U8", [1], b"\x01")).read_bytes()
    assert b"__metadata__" not in raw
    assert raw[-1] == 1


@settings(max_examples=50, deadline=None)
@given(
    tensors=st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable()),
        st.binary(max_size=200),
        max_size=6,
    ),
    metadata=st.dictionaries(st.text('abc"\\é', max_size=4), st.text("xy\n", max_size=9)),
)
def test_what_is_written_is_read_back(
    tensors: dict[str, bytes],
    metadata: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.q4nx"
    specs = [spec(name, "U8", [len(data)], data) for name, data in tensors.items()]
    write(path, *specs, metadata=metadata)
    first = path.read_bytes()
    write(path, *specs, metadata=dict(reversed(metadata.items())))
    assert path.read_bytes() == first
    with Container.open(path) as opened:
        assert opened.metadata == metadata
        assert list(opened.entries) == list(tensors)
        for name, data in tensors.items():
            assert opened.raw(name).tobytes() == data
            assert opened.entries[name].begin % 64 == 0


def test_independent_reader_agrees(tmp_path: Path) -> None:
    """Parse by the format's rules alone."""
    data = np.arange(300, dtype=np.uint8)
    raw = write(tmp_path / "m.q4nx", spec("a", "U8", [300], data)).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + length])["a"]["data_offsets"]
    assert raw[8 + length + begin : 8 + length + end] == data.tobytes()


def test_chunks_are_asked_for_one_tensor_at_a_time(tmp_path: Path) -> None:
    asked: list[str] = []

    def produce(name: str) -> Iterator[bytes]:
        for part in range(3):
            asked.append(f"{name}{part}")
            yield bytes([part]) * 10

    specs = [TensorSpec(name, "U8", (30,), 30, lambda name=name: produce(name)) for name in "ab"]
    write_container(tmp_path / "m.q4nx", specs, {})
    assert asked == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize("wrong", [b"123", b"12345"])
def test_a_wrong_producer_leaves_the_old_file(tmp_path: Path, wrong: bytes) -> None:
    path = write(tmp_path / "m.q4nx", spec("a", "U8", [1], b"\x01"))
    before = path.read_bytes()
    bad = TensorSpec("a", "U8", (4,), 4, lambda: [wrong])
    with pytest.raises(ValueError, match="4 bytes declared"):
        write_container(path, [bad], {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_producer_leaves_nothing(tmp_path: Path) -> None:
    def produce() -> Iterator[bytes]:
        yield b"12"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_container(tmp_path / "m.q4nx", [TensorSpec("a", "U8", (4,), 4, produce)], {})
    assert not any(tmp_path.iterdir())


def test_a_full_disk_is_a_finding(tmp_path: Path) -> None:
    def produce() -> Iterator[bytes]:
        raise OSError(28, "No space left on device")
        yield b""

    bad = TensorSpec("a", "U8", (4,), 4, produce)
    with pytest.raises(InputError, match="No space left on device") as caught:
        write_container(tmp_path / "m.q4nx", [bad], {})
    assert caught.value.findings[0].code == "container.write_failed"
    assert not any(tmp_path.iterdir())


def test_a_missing_directory_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        write_container(tmp_path / "none" / "m.q4nx", [], {})


def test_names_are_unique(tmp_path: Path) -> None:
    twice = [spec("a", "U8", [0], b""), spec("a", "U8", [0], b"")]
    with pytest.raises(ValueError, match="taken twice"):
        write_container(tmp_path / "m.q4nx", twice, {})
    with pytest.raises(ValueError, match="not allowed"):
        write_container(tmp_path / "m.q4nx", [spec("__metadata__", "U8", [0], b"")], {})


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        path = write(tmp_path / "m.q4nx", spec("a", "U8", [1], b"\x01"))
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
