"""Other people's clients in environments of their own, and SmolLM2 served to them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.api.conftest import serve
from tests.fixtures.child import Child, free_port, running

__all__ = ["serve"]

MODEL = "SmolLM2"
Environment = Callable[..., Path]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Make a virtual environment by name and packages, and return its `bin`.

    TEST_CLIENTS names a folder that keeps them from one run to the next.
    """
    kept = os.environ.get("TEST_CLIENTS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("clients")

    def make(name: str, *packages: str) -> Path:
        programs = folder / name / "bin"
        if not (programs / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
            subprocess.run(
                [programs / "python", "-m", "pip", "install", "-q", *packages], check=True
            )
            (programs / "installed").touch()
        return programs

    return make


@pytest.fixture(scope="session")
def served(smollm2: Path) -> Iterator[Child]:
    """Serve SmolLM2 in exact arithmetic."""
    port = free_port()
    command = [sys.executable, "-m", "onebit.cli", "serve", "-m", str(smollm2), "--alias", MODEL]
    command += ["--numerics", "exact", "--device", "cpu", "--port", str(port)]
    environ = {"ONEBIT_LOGGING__LEVEL": "warning"}  # nobody reads its pipe
    with running(command, port, environ) as child:
        yield child
