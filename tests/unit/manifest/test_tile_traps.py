"""Tiles of another width, mixed zeros, empty tensors and dropped scales, planted and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onebit.container import TensorKind, TensorSpec
from onebit.container.codecs import plain, q4
from onebit.findings import Severity
from onebit.manifest import inspect_directory
from tests.fixtures.tiny_container import TINY_CONFIGS, encode, write_tiny
from tests.fixtures.traps import Change, Values, found, loud, the_only, tiles, write

UP = "model.layers.0.mlp.up_proj.weight"
K = TensorKind


def stored(names: tuple[str, ...], kind: TensorKind) -> Change:
    """Store tensors whose name holds one of `names` as `kind`."""

    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if values.ndim == 1 or not any(part in name for part in names):
            return None
        return [encode(name, values, kind)]

    return change


def plain_spec(name: str, dtype: str, data: NDArray[Any]) -> TensorSpec:
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    return TensorSpec(name, dtype, data.shape, raw.size, lambda: [raw])


def of_width(width: int, per_group: int) -> Change:
    """Store `up_proj` in tiles of 32 x width, `per_group` bytes for each 32 x 32 values."""

    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if name != UP:
            return None
        rows, cols = values.shape
        count, size = -(-rows // 32) * -(-cols // width), width // 32 * per_group
        raw = np.random.default_rng(0).integers(0, 256, count * size, np.uint8)
        return [TensorSpec(name, "I8", (count, size), raw.size, lambda: [raw])]

    return change


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize(
    ("width", "per_group", "holds"),
    [
        (32, 640, "4-bit"), (128, 640, "4-bit"), (512, 640, "4-bit"),
        (128, 1088, "8-bit tiles with scales of"), (128, 1152, "8-bit tiles with scales and zeros"),
        (64, 1152, "8-bit tiles with scales and zeros"),
    ],
)  # fmt: skip
def test_tiles_of_another_width_name_the_option(
    tmp_path: Path, family: str, width: int, per_group: int, holds: str
) -> None:
    write(tmp_path, family, K.Q4_1, of_width(width, per_group))
    finding = found(tmp_path, "container.chunk_width")
    assert finding.severity is Severity.ERROR
    assert finding.where.field == UP
    assert holds in finding.what
    assert f"32 x {width}" in finding.what
    assert f"`col_block_size` {width}" in finding.what
    assert "onebit convert" in finding.mend


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_an_empty_zero_plane_of_8_bit_tiles_names_the_version(tmp_path: Path, family: str) -> None:
    write(tmp_path, family, K.Q8_B, of_width(256, 1152))
    finding = found(tmp_path, "container.kind_unsupported")
    assert "038e67e" in finding.what
    assert "8704" in finding.what


@pytest.mark.parametrize("family", sorted(TINY_CONFIGS))
def test_8_bit_tiles_of_half_the_width_are_served_and_named(tmp_path: Path, family: str) -> None:
    write(tmp_path, family, K.Q8_A, stored(("up_proj", "q_proj"), K.Q8_IN_Q4))
    finding = the_only(tmp_path, "container.chunk_width")
    assert finding.severity is Severity.WARNING
    assert "32 x 128" in finding.what
    assert "before commit 038e67e" in finding.what


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("I8", K.Q4NX), ("I8", K.Q4_0), ("Q4NX", K.Q4_1), ("Q4NX", K.Q4_0), ("Q4NX", K.Q4NX)],
)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_the_bytes_tell_the_zeros_whatever_the_dtype(
    tmp_path: Path, family: str, dtype: str, kind: TensorKind
) -> None:
    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if name != UP:
            return None
        raw = np.concatenate(list(encode(name, values, kind).produce()))
        shape = values.shape if dtype == "Q4NX" else (raw.size // 5120, 5120)
        return [TensorSpec(name, dtype, shape, raw.size, lambda: [raw])]

    write(tmp_path, family, K.Q4_1, change)
    manifest = inspect_directory(tmp_path, deep=True)
    assert [str(f) for f in manifest.findings if f.severity is not Severity.NOTE] == []
    assert manifest.tensor_kinds[kind.value] == (14 if family != "gemma3" else 42) ** (
        kind is K.Q4_1
    )


@pytest.mark.parametrize("wrong", [K.Q4NX, K.Q4_0])
@pytest.mark.parametrize("right", [K.Q4_1, K.Q4NX, K.Q4_0])
@pytest.mark.parametrize("family", ["phi3"])
def test_a_few_tiles_with_other_zeros(
    tmp_path: Path, family: str, right: TensorKind, wrong: TensorKind
) -> None:
    """The quick look samples 32 tiles; `--deep` reads all of them."""
    if right is wrong:
        wrong = K.Q4_1

    def partly(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if "layers.0.mlp.down_proj" not in name:
            return None
        raw, other = (
            np.concatenate(list(encode(name, values, k).produce())) for k in (right, wrong)
        )
        raw[97 * 5120 : 99 * 5120] = other[97 * 5120 : 99 * 5120]
        return tiles(name, raw, right)

    write(tmp_path, family, K.Q8_A, partly, intermediate_size=8192)
    finding = found(tmp_path, "container.zero_mixed")
    assert finding.severity is Severity.ERROR
    assert (finding.where.field or "").endswith("down_proj.weight")
    assert "99% " in finding.what
    if right is K.Q4_1:
        assert "tile 97 and 1% in all" in finding.what


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_second_planes_that_are_no_zeros(tmp_path: Path, family: str) -> None:
    def rubbish(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if name != UP:
            return None
        parts = q4.quantize(values)
        return tiles(name, q4.pack(K.Q4_1, q4.Planes(parts.d, parts.codes, m=90 * parts.d)), K.Q4_1)

    write(tmp_path, family, K.Q4_1, rubbish)
    finding = found(tmp_path, "container.zero_unclear")
    assert finding.severity is Severity.WARNING
    assert finding.where.field == UP


@pytest.mark.parametrize("kind", [K.Q4_1, K.Q4_0, K.Q4NX, K.Q4_K, K.Q8_A, K.Q8_B, K.BF16])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_tensor_of_zeros(tmp_path: Path, family: str, kind: TensorKind) -> None:
    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        return [encode(name, values * np.float32(0), kind)] if name == UP else None

    write(tmp_path, family, K.Q4_1, change)
    finding = found(tmp_path, "container.all_zero")
    assert finding.where.field == UP
    assert finding.severity is Severity.ERROR


def test_an_int8_embedding_of_zeros(tmp_path: Path) -> None:
    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if "embed" not in name:
            return None
        table, scale = plain.quantize_int8(values)
        parts = {name: ("I8", table), f"{name}.scale": ("F32", np.zeros_like(scale))}
        return [plain_spec(key, dtype, data) for key, (dtype, data) in parts.items()]

    write(tmp_path, "llama", K.Q4_1, change)
    assert found(tmp_path, "container.all_zero").where.field == "model.embed_tokens.weight"


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("key", ["scale_emb", "residual_multiplier", "logits_scaling"])
def test_a_declared_scale_that_the_family_drops(tmp_path: Path, family: str, key: str) -> None:
    write_tiny(tmp_path, family, changes={key: 12.0})
    finding = found(tmp_path, "config.dropped_scale")
    assert finding.severity is Severity.ERROR
    assert finding.where.field == key


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("minicpm", {}),
        ("gemma3", {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}),
        ("llama", {"logits_scaling": 8.0, "q4nx_folded_multipliers": ["logits_scaling"]}),
        ("qwen2", {"logits_scaling": 1.0}),
    ],
)  # fmt: skip
def test_scales_that_are_applied_folded_or_neutral(
    tmp_path: Path, family: str, changes: dict[str, object]
) -> None:
    write_tiny(tmp_path, family, changes=changes)
    assert loud(tmp_path) == []


@pytest.mark.parametrize("family", sorted(TINY_CONFIGS))
def test_no_false_alarm_on_mixed_kinds(tmp_path: Path, family: str) -> None:
    mix = {"q": K.Q8_A, "k": K.Q8_B, "up": K.Q4_K, "gate": K.Q4NX, "o": K.Q4_0}
    kinds = {f".{part}_proj.weight": kind for part, kind in mix.items()}
    write_tiny(tmp_path, family, kinds=kinds)
    assert loud(tmp_path) == []
