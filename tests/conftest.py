"""Fixtures that several kinds of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from onebit.convert import convert_gguf
from tests.fixtures.real_models import smollm2_gguf


@pytest.fixture(scope="session")
def smollm2_source() -> Path:
    """Return the real SmolLM2 GGUF."""
    return smollm2_gguf()


@pytest.fixture(scope="session")
def smollm2(smollm2_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return SmolLM2 as a model directory, converted once; tests must not change it."""
    directory = tmp_path_factory.mktemp("smollm2") / "smollm2"
    convert_gguf(smollm2_source, directory)
    return directory
