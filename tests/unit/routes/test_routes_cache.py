"""The cache of converted files: whole entries are used, all others are made anew."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from onebit.findings import InputError
from onebit.routes import cache as cache_module
from onebit.routes.cache import STAMP, GgufCache, read_stamp


def silent(doing: str, done: int, total: int) -> None:
    """Take progress without a word."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    return path


@pytest.fixture
def cache(tmp_path: Path) -> GgufCache:
    return GgufCache(tmp_path / "cache", "onebit-1")


def make_entry(cache: GgufCache, source: Path) -> Path:
    digest = cache.digest(source)
    entry = cache.path(digest)
    entry.mkdir(parents=True)
    (entry / "model.q4nx").write_bytes(b"x" * 100)
    (entry / "config.json").write_text("{}")
    cache.seal(entry, source, digest)
    return entry


def test_the_key_is_content_and_converter(cache: GgufCache, source: Path, tmp_path: Path) -> None:
    digest = cache.digest(source)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(source.read_bytes())
    assert cache.digest(copy) == digest
    copy.write_bytes(source.read_bytes() + b"!")
    assert cache.digest(copy) != digest
    assert cache.path(digest).name == f"{digest[:32]}-onebit-1"
    assert GgufCache(tmp_path / "cache", "onebit-2").path(digest) != cache.path(digest)


def test_a_digest_is_remembered_until_the_file_changes(
    cache: GgufCache, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cache.digest(source)
    hashed = []
    real = cache_module._hash
    monkeypatch.setattr(
        cache_module, "_hash", lambda *args: (hashed.append(args[0]), real(*args))[1]
    )
    assert cache.digest(source) == first
    assert hashed == []
    time.sleep(0.01)
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    source.write_bytes(data)  # the same size
    assert cache.digest(source) != first
    assert hashed == [source]


def test_a_damaged_memory_of_a_digest_is_ignored(cache: GgufCache, source: Path) -> None:
    first = cache.digest(source)
    (memo,) = (cache.root / "digests").iterdir()
    for text in ("", "zz" * 32, first[:10]):
        memo.write_text(text)
        assert cache.digest(source) == first


def test_a_whole_entry_is_ready(cache: GgufCache, source: Path) -> None:
    digest = cache.digest(source)
    assert cache.ready(digest) is None
    entry = make_entry(cache, source)
    assert cache.ready(digest) == entry
    stamp = read_stamp(entry)
    assert stamp is not None
    assert stamp.files == {"config.json": 2, "model.q4nx": 100}
    assert stamp.source == str(source)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / STAMP).unlink(),
        lambda entry: (entry / STAMP).write_text("{"),
        lambda entry: (entry / STAMP).write_text("{}"),
        lambda entry: (entry / "model.q4nx").write_bytes(b"x" * 99),
        lambda entry: (entry / "config.json").unlink(),
    ],
)
def test_a_damaged_entry_is_not_used_and_swept(cache: GgufCache, source: Path, damage) -> None:
    entry = make_entry(cache, source)
    damage(entry)
    digest = cache.digest(source)
    assert cache.ready(digest) is None
    assert [e.state for e in cache.entries()] == ["damaged"]
    leftover = entry.parent / f".{entry.name}.tmp123"
    leftover.mkdir()
    cache.sweep(digest)
    assert not entry.exists()
    assert not leftover.exists()


def test_entries_and_clear(cache: GgufCache, source: Path, tmp_path: Path) -> None:
    entry = make_entry(cache, source)
    newer = GgufCache(tmp_path / "cache", "onebit-2")
    assert [(e.state, e.path, e.source) for e in newer.entries()] == [
        ("stale", str(entry), str(source))
    ]
    whole = make_entry(newer, source)
    (found,) = [e for e in newer.entries() if e.state == "ready"]
    assert found.path == str(whole)
    assert found.bytes == sum(p.stat().st_size for p in whole.iterdir())
    assert [e.path for e in newer.clear(unusable_only=True)] == [str(entry)]
    assert whole.exists()
    assert [e.path for e in newer.clear()] == [str(whole)]
    assert newer.entries() == []


def test_an_absent_cache_is_empty(tmp_path: Path) -> None:
    cache = GgufCache(tmp_path / "nowhere", "onebit-1")
    assert cache.entries() == []
    assert cache.clear() == []


def test_the_lock_keeps_two_apart_and_says_so(cache: GgufCache, source: Path) -> None:
    digest = cache.digest(source)
    held, said, order = threading.Event(), [], []

    def first() -> None:
        with cache.locked(digest, silent):
            held.set()
            time.sleep(0.2)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    held.wait()
    with cache.locked(digest, lambda doing, done, total: said.append(doing)):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert said == ["waiting for another process that converts this file"]


def test_the_lock_file_is_no_symbolic_link(cache: GgufCache, source: Path, tmp_path: Path) -> None:
    digest = cache.digest(source)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (cache.root / f"{digest[:32]}.lock").symlink_to(victim)
    with pytest.raises(InputError, match="cannot be locked"), cache.locked(digest, silent):
        raise AssertionError("not reached")
    assert victim.read_text() == "mine"


def test_a_lock_dies_with_its_process(cache: GgufCache, source: Path) -> None:
    digest = cache.digest(source)
    path = cache.root / f"{digest[:32]}.lock"
    child = os.fork()
    if child == 0:
        handle = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(handle, fcntl.LOCK_EX)
        os._exit(0)
    os.waitpid(child, 0)
    with cache.locked(digest, silent):
        pass


def test_an_unwritable_cache_is_one_clear_finding(source: Path, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(InputError, match="ONEBIT_CACHE_DIR"):
        GgufCache(blocker, "onebit-1").digest(source)
