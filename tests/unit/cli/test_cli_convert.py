"""`onebit convert`: the missing config of a bare directory, and kinds for all matrices."""

from __future__ import annotations

from pathlib import Path

import pytest

from onebit.findings import Severity
from onebit.manifest import inspect_directory
from tests.fixtures.tiny_gguf import write_gguf
from tests.unit.cli.conftest import Run


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_config_only_makes_a_bare_directory_servable(run: Run, tmp_path: Path, arch: str) -> None:
    """model.q4nx and tokenizer.json alone are what other converters leave."""
    source, out = tmp_path / "m.gguf", tmp_path / "out"
    write_gguf(source, arch)
    assert run("convert", source, out).status == 0
    whole = inspect_directory(out)
    for file in out.iterdir():
        if file.name not in ("model.q4nx", "tokenizer.json"):
            file.unlink()
    broken = run("validate", out)
    assert broken.status == 1
    assert f"error: {out / 'config.json'}: is not there" in broken.out
    assert f"`onebit convert --config-only MODEL.gguf {out}`" in broken.out.splitlines()[-1]
    written = run("convert", "--config-only", source, out)
    assert written.status == 0
    assert written.out.split() == [
        word
        for name in ("config.json", "tokenizer_config.json", "generation_config.json")
        for word in ("wrote", str(out / name))
    ]
    made = inspect_directory(out, deep=True)
    assert made.template is not None
    assert made.plan == whole.plan
    assert run("validate", out, "--deep").status == 0


def test_a_kind_without_a_pattern_is_for_all_matrices(run: Run, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    assert run("convert", tmp_path / "m.gguf", tmp_path / "out", "--type", "q8").status == 0
    manifest = inspect_directory(tmp_path / "out", deep=True)
    assert set(manifest.tensor_kinds) == {"q8_a", "bf16"}
    assert [f for f in manifest.findings if f.severity is not Severity.NOTE] == []


def test_a_kind_that_is_none(run: Run, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    result = run("convert", tmp_path / "m.gguf", tmp_path / "out", "--type", "q5")
    assert result.status == 2
    assert "--type q8, or --type q_proj=q8" in result.err
