"""Runs the command line in this process, as its entry point does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from onebit.cli.main import main
from tests.fixtures.tiny_container import write_tiny


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("ONEBIT_CACHE_DIR", str(tmp_path / "cache"))

    def call(*arguments: str | Path) -> Result:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        status = caught.value.code
        assert isinstance(status, int)
        return Result(status, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cli") / "tiny"
    write_tiny(directory, "llama")
    return directory


@pytest.fixture
def tiny(tiny_source: Path, tmp_path: Path) -> Path:
    """A model directory of the test's own."""
    return Path(shutil.copytree(tiny_source, tmp_path / "tiny"))
