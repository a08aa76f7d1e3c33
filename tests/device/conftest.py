"""Fixtures of the NPU tests: fake machines, tiny models with kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onebit.cli.main import main
from onebit.config.npu import NpuConfig
from onebit.devices.base import ProgramOptions
from onebit.forward.npu_program import NpuProgram, Patience
from onebit.forward.remote import open_npu
from tests.device.design_files import write_kernels
from tests.device.machine import NpuMachine
from tests.fixtures.programs import plan_of
from tests.fixtures.tiny_container import write_tiny

QUICK = Patience(stall=2.0, close=5.0, pauses=(0, 0, 0.2, 5), step=2.0)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NpuMachine:
    """A machine with one NPU that works."""
    made = NpuMachine(tmp_path / "machine")
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama directory, without kernels."""
    directory = tmp_path_factory.mktemp("npu") / "tiny"
    write_tiny(directory)
    return directory


@pytest.fixture(scope="session")
def kernels(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The complete kernel set of `tiny`."""
    directory = tmp_path_factory.mktemp("kernels")
    write_kernels(directory, plan_of(tiny))
    return directory


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process, as its entry point does."""

    def call(*arguments: str | Path) -> Result:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert isinstance(caught.value.code, int)
        return Result(caught.value.code, captured.out, captured.err)

    return call


Open = Callable[..., NpuProgram]


@pytest.fixture
def open_program(machine: NpuMachine, tiny: Path, kernels: Path) -> Iterator[Open]:
    """Open programs on the fake machine; they are closed at the end."""
    with ExitStack() as stack:

        def open_it(
            model: Path = tiny,
            designs: Path | None = kernels,
            patience: Patience = QUICK,
            pages: int = 8,
            max_rows: int = 256,
            context: int = 256,
            **settings: Any,
        ) -> NpuProgram:
            options = ProgramOptions(
                context=context, pages=pages, page_size=32, max_rows=max_rows, threads=1
            )
            program = open_npu(
                plan_of(model),
                model / "model.q4nx",
                designs,
                options,
                NpuConfig(**settings),
                device_root=machine.root,
                patience=patience,
            )
            stack.callback(program.close)
            return program

        yield open_it
