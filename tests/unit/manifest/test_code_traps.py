"""Codes, zeros, padding and heads that a converter got wrong, planted and found by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onebit.container import TensorKind, TensorSpec
from onebit.container.codecs import q4, q8
from onebit.findings import Severity
from onebit.manifest import inspect_directory
from tests.fixtures.tiny_container import encode, write_tiny
from tests.fixtures.traps import Change, Values, found, kinds, tiles, write

UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_subtractive_and_additive_zeros_are_told_apart(tmp_path: Path, family: str) -> None:
    def subtractive(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if name != UP:
            return None
        parts = q4.quantize(values)
        zero = np.rint(-parts.m / parts.d).clip(0, 15).astype(np.float32)
        return tiles(
            name,
            q4.pack(TensorKind.Q4NX, q4.Planes(parts.d, parts.codes, z=zero)),
            TensorKind.Q4NX,
        )

    write(tmp_path, family, TensorKind.Q4_1, subtractive)
    assert kinds(tmp_path)["q4nx"] == 1
    note = next(
        f
        for f in inspect_directory(tmp_path, deep=True).findings
        if f.code == "container.encoding" and "subtractive" in f.what
    )
    assert note.severity is Severity.NOTE


def test_both_code_layouts_of_eight_bits_are_told_apart(tmp_path: Path) -> None:
    def other(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        return [encode(name, values, TensorKind.Q8_A)] if name == UP else None

    write(tmp_path, "qwen2", TensorKind.Q8_B, other)
    counts = kinds(tmp_path)
    assert (counts["q8_a"], counts["q8_b"]) == (1, 13)


def test_codes_that_tell_no_layout(tmp_path: Path) -> None:
    def shuffled(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if name != UP:
            return None
        parts = q8.quantize(values)
        mixed = np.random.default_rng(0).permutation(parts.codes.reshape(-1))
        return tiles(
            name,
            q8.pack(TensorKind.Q8_A, q8.Planes(parts.d, mixed.reshape(parts.codes.shape))),
            TensorKind.Q8_A,
        )

    write(tmp_path, "llama", TensorKind.Q8_A, shuffled)
    finding = found(tmp_path, "container.q8_layout", deep=False)
    assert finding.where.field == UP
    assert "layout A" in finding.what


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_a_few_tiles_in_the_other_layout(tmp_path: Path, family: str) -> None:
    """The quick look samples 32 tiles; `--deep` reads all of them."""

    def partly(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if name != "model.layers.0.mlp.down_proj.weight":
            return None
        a = np.concatenate(list(encode(name, values, TensorKind.Q8_A).produce()))
        b = np.concatenate(list(usual.produce()))
        size, at = TensorKind.Q8_A.tile_bytes, 97
        b[at * size : (at + 16) * size] = a[at * size : (at + 16) * size]
        return tiles(name, b, TensorKind.Q8_B)

    write(tmp_path, family, TensorKind.Q8_B, partly, intermediate_size=8192)
    finding = found(tmp_path, "container.q8_layout")
    assert finding.severity is Severity.ERROR
    assert finding.where.field == "model.layers.0.mlp.down_proj.weight"
    assert "tiles from 97 on" in finding.what


def test_four_bit_codes_in_another_order(tmp_path: Path) -> None:
    def row_major(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if name != UP:
            return None
        raw = np.concatenate(list(usual.produce())).reshape(-1, 5120).copy()
        codes = raw[:, 1024:].reshape(-1, 512, 8)
        raw[:, 1024:] = codes.transpose(0, 2, 1).reshape(-1, 4096)
        return tiles(name, raw, TensorKind.Q4_1)

    write(tmp_path, "llama", TensorKind.Q4_1, row_major)
    finding = found(tmp_path, "container.code_order")
    assert finding.where.field == UP
    assert "code 0 and code 15" in finding.what


def test_padding_that_is_not_zero(tmp_path: Path) -> None:
    def rubbish(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if name != "model.layers.0.mlp.down_proj.weight":
            return None
        draw = np.random.default_rng(0)
        wide = draw.standard_normal((values.shape[0], 512)).astype(np.float32)
        wide[:, : values.shape[1]] = values
        return [encode(name, wide, TensorKind.Q4_1)]

    write(tmp_path, "qwen2", TensorKind.Q4_1, rubbish)  # its intermediate size is 320
    finding = found(tmp_path, "container.padding")
    assert finding.where.field == "model.layers.0.mlp.down_proj.weight"


def with_head(scale: float, noise: float) -> Change:
    """Add a stored head: the embedding's rows times `scale`, plus noise of their size."""

    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if "embed" not in name:
            return None
        draw = np.random.default_rng(5)
        other = draw.standard_normal(values.shape).astype(np.float32) * values.std()
        head = (values * (1 - noise) + other * noise) * np.float32(scale)
        return [usual, encode("lm_head.weight", head, TensorKind.Q4_1)]

    return change


@pytest.mark.parametrize(
    ("family", "scale", "bad"),
    [("llama", 1.0, False), ("llama", 16.0, True), ("gemma3", 1 / 16, False), ("gemma3", 1, True)],
)
def test_an_embedding_of_the_wrong_size(
    tmp_path: Path, family: str, scale: float, bad: bool
) -> None:
    """Gemma stores its embedding sqrt(256) times as large as the head; others alike."""
    write(tmp_path, family, TensorKind.Q4_1, with_head(scale, 0.0))
    findings = inspect_directory(tmp_path, deep=True).findings
    assert ("container.embedding_scale" in [f.code for f in findings]) is bad
    assert "container.tied_head" in [f.code for f in findings]


def test_a_head_that_is_half_like_the_embedding(tmp_path: Path) -> None:
    write(tmp_path, "llama", TensorKind.Q4_1, with_head(1.0, 0.5))
    finding = found(tmp_path, "container.head_unclear")
    assert "neither tied" in finding.what


def test_an_untied_head_is_noted(tmp_path: Path) -> None:
    write_tiny(tmp_path, "nanbeige")
    findings = inspect_directory(tmp_path, deep=True).findings
    assert "container.untied_head" in [f.code for f in findings]
