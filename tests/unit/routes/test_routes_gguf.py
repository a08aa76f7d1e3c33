"""Route gguf: converted once, then the same container as any other."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from route_support import KERNELS, NPU, Machine, config

import onebit.convert
from onebit.findings import InputError, OnebitError, Refusal, error
from onebit.routes import resolve
from onebit.routes.cache import STAMP
from onebit.routes.gguf import CONVERTER, convert_once, open_cache


def silent(doing: str, done: int, total: int) -> None:
    """Take progress without a word."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "some-model.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    return path


@pytest.fixture
def conversions(tiny_source: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the converter by one that copies the tiny container."""
    done: list[Path] = []

    def convert(source: Path, target: Path, *, progress=None, **_: object) -> None:
        progress(1, 2)
        shutil.copytree(tiny_source, target)
        progress(2, 2)
        done.append(target)

    monkeypatch.setattr(onebit.convert, "convert_gguf", convert)
    monkeypatch.setattr(onebit.convert, "check_gguf", lambda source: None)
    return done


@pytest.fixture
def machine(machine: Machine, tmp_path: Path) -> Machine:
    machine.environ = {"ONEBIT_CACHE_DIR": str(tmp_path / "cache")}
    return machine


def test_the_cache_is_keyed_by_the_converter() -> None:
    assert onebit.convert.CONVERTER == CONVERTER


def test_first_start_converts_later_ones_do_not(
    source: Path, machine: Machine, conversions: list[Path]
) -> None:
    first = resolve(config(source), machine.world())
    assert (first.route, first.device.device, first.plan) == ("gguf", None, None)
    assert conversions == []  # nothing is converted before the port is open
    assert first.findings[0].code == "gguf.not_converted"
    said: list[str] = []
    session = first.open(lambda doing, done, total: said.append(f"{doing} {done}/{total}"))
    session.close()
    assert len(conversions) == 1
    assert "converting the GGUF 1/2" in said
    assert session.resolution.route == "gguf"
    assert session.resolution.name == "some-model"
    assert session.resolution.device.device == "cpu"

    again = resolve(config(source), machine.world())
    assert again.model == str(conversions[0])
    assert (again.name, again.route, again.device.device) == ("some-model", "gguf", "cpu")
    again.open(silent).close()
    assert len(conversions) == 1


def test_an_alias_wins_over_the_files_name(
    source: Path, machine: Machine, conversions: list[Path]
) -> None:
    resolve(config(source), machine.world()).open(silent).close()
    resolution = resolve(config(source, alias="mine"), machine.world())
    assert resolution.name == "mine"
    settings = {s.name: s.source for s in resolution.settings}
    assert settings["alias"] == "flag --alias"
    assert {s.name: s.source for s in resolve(config(source), machine.world()).settings}[
        "alias"
    ] == "default"


def test_a_half_written_entry_is_made_anew(
    source: Path, machine: Machine, conversions: list[Path]
) -> None:
    cache = open_cache(machine.world().cache_dir)
    entry = convert_once(cache, source, silent)
    (entry / STAMP).unlink()  # as if the process had died before the stamp
    assert convert_once(cache, source, silent) == entry
    (entry / "model.q4nx").write_bytes(b"short")
    convert_once(cache, source, silent)
    assert len(conversions) == 3
    convert_once(cache, source, silent)
    assert len(conversions) == 3


def test_two_starts_at_once_convert_once(
    source: Path, machine: Machine, conversions: list[Path]
) -> None:
    cache = open_cache(machine.world().cache_dir)
    threads = [threading.Thread(target=convert_once, args=(cache, source, silent)) for _ in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1


def test_a_failed_conversion_leaves_no_entry(
    source: Path, machine: Machine, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, target: Path, **_: object) -> None:
        raise InputError(error("gguf.bad", "no", "convert another"))

    monkeypatch.setattr(onebit.convert, "convert_gguf", fail)
    with pytest.raises(OnebitError, match=r"gguf\.bad"):
        resolve(config(source), machine.world()).open(silent)
    assert open_cache(machine.world().cache_dir).entries() == []


def test_a_file_that_changes_meanwhile_is_not_kept(
    source: Path, machine: Machine, conversions: list[Path], tiny_source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def convert(source: Path, target: Path, **_: object) -> None:
        shutil.copytree(tiny_source, target)
        source.write_bytes(b"GGUF and something else")

    monkeypatch.setattr(onebit.convert, "convert_gguf", convert)
    with pytest.raises(InputError, match="changed while"):
        resolve(config(source), machine.world()).open(silent)
    assert open_cache(machine.world().cache_dir).entries() == []


def test_a_bad_header_is_refused_before_the_port(
    source: Path, machine: Machine, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path) -> None:
        raise InputError(error("gguf.truncated", "the tensor table is cut", "download it again"))

    monkeypatch.setattr(onebit.convert, "check_gguf", refuse)
    with pytest.raises(InputError, match="tensor table is cut"):
        resolve(config(source), machine.world())


def test_settings_that_no_device_honours_are_refused_at_once(
    source: Path, machine: Machine, conversions: list[Path]
) -> None:
    for settings in ({"router__laya_model": "x"}, {"device": "cpu", "npu__streams": 2}):
        with pytest.raises(Refusal, match=r"config\.not_honoured"):
            resolve(config(source, **settings), machine.world())
    # `auto` may still take the NPU once the plan is known, so this one waits for it
    machine.npu, machine.kernels = NPU, KERNELS
    resolution = resolve(config(source, npu__streams=2), machine.world())
    session = resolution.open(silent)
    assert session.resolution.device.device == "npu"
    session.close()


def test_the_container_is_the_same_as_by_its_directory(
    source: Path, machine: Machine, conversions: list[Path], tiny: Path
) -> None:
    resolve(config(source), machine.world()).open(silent).close()
    by_gguf = resolve(config(source), machine.world())
    by_directory = resolve(config(tiny), machine.world())
    assert by_gguf.plan == by_directory.plan
    assert by_gguf.memory == by_directory.memory
