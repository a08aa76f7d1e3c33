"""A tiny model of the test's own, and a machine without an NPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from route_support import Machine

from tests.fixtures.tiny_container import write_tiny


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("routes") / "tiny"
    write_tiny(directory, "llama")
    # Without a chat template no worker process is started to render it, which is most of the time.
    (directory / "tokenizer_config.json").write_text("{}")
    return directory


@pytest.fixture
def tiny(tiny_source: Path, tmp_path: Path) -> Path:
    """A model directory of the test's own."""
    return Path(shutil.copytree(tiny_source, tmp_path / "tiny"))


@pytest.fixture
def machine() -> Machine:
    return Machine()
