"""Mistakes that only weights of a trained shape show: scale order, rope order, stored scales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from onebit.container import TensorKind, TensorSpec, TensorView
from onebit.container.codecs.tiles import tile_records
from onebit.findings import Severity
from tests.fixtures.tiny_container import TINY_CONFIGS, encode
from tests.fixtures.traps import Change, Values, found, loud, the_only, tiles, trained, write

UP = "model.layers.0.mlp.up_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
EMBED = "model.embed_tokens.weight"
HEAD_DIM = 64
ROTARY = {"phi3": 48}
KINDS = [
    TensorKind.Q4_1, TensorKind.Q4_0, TensorKind.Q4NX, TensorKind.Q4_K, TensorKind.Q8_A,
    TensorKind.Q8_B,
]  # fmt: skip
LAYERS = {"num_hidden_layers": 4}


def with_rows(
    family: str, kind: TensorKind, order: NDArray[np.intp] | None = None, only: str = ""
) -> Change:
    """Make all matrices look trained; q and k rows are moved to `order` within every head."""

    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        if values.ndim == 1 or "embed" in name or "lm_head" in name:
            return None
        made = trained(name, values, HEAD_DIM, ROTARY.get(family, HEAD_DIM))
        if order is not None and ("q_proj" in name or "k_proj" in name) and only in name:
            made = made.reshape(-1, HEAD_DIM, made.shape[1])[:, order].reshape(made.shape)
        return [encode(name, made, kind)]

    return change


def interleaved(rotary: int) -> NDArray[np.intp]:
    """Half-split rows -> interleaved, what a converter without the permutation leaves."""
    turned = np.arange(rotary).reshape(2, -1).T.reshape(-1)
    return np.concatenate([turned, np.arange(rotary, HEAD_DIM)])


def permuted_again(rotary: int) -> NDArray[np.intp]:
    """Half-split rows through the llama permutation, as if they were interleaved."""
    turned = np.arange(rotary).reshape(-1, 2).T.reshape(-1)
    return np.concatenate([turned, np.arange(rotary, HEAD_DIM)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", sorted(TINY_CONFIGS))
def test_no_false_alarm_on_trained_shapes(tmp_path: Path, family: str, kind: TensorKind) -> None:
    write(tmp_path, family, kind, with_rows(family, kind), **LAYERS)
    assert loud(tmp_path) == []


@pytest.mark.parametrize("kind", [TensorKind.Q4_1, TensorKind.Q8_B])
@pytest.mark.parametrize("family", sorted(TINY_CONFIGS))
def test_rows_left_in_interleaved_order(tmp_path: Path, family: str, kind: TensorKind) -> None:
    order = interleaved(ROTARY.get(family, HEAD_DIM))
    write(tmp_path, family, kind, with_rows(family, kind, order), **LAYERS)
    finding = the_only(tmp_path, "container.rope_interleaved")
    assert finding.where.field == "model.layers.0.self_attn.q_proj.weight"
    assert "interleaved -> half-split" in finding.mend


@pytest.mark.parametrize("kind", [TensorKind.Q4_1, TensorKind.Q8_A])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma3", "phi3"])
def test_rows_permuted_once_too_often(tmp_path: Path, family: str, kind: TensorKind) -> None:
    order = permuted_again(ROTARY.get(family, HEAD_DIM))
    write(tmp_path, family, kind, with_rows(family, kind, order), **LAYERS)
    finding = the_only(tmp_path, "container.rope_permuted_twice")
    assert "without the q/k row permutation" in finding.mend


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_scales_that_lie_row_by_row(tmp_path: Path, family: str, kind: TensorKind) -> None:
    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        made = with_rows(family, kind)(name, values, usual)
        return [row_by_row(made[0], values.shape, kind)] if made and name == UP else made

    write(tmp_path, family, kind, change)
    finding = found(tmp_path, "container.scales_swapped")
    assert finding.where.field == UP
    assert "g * 32 + r" in finding.mend


@pytest.mark.parametrize("kind", [TensorKind.Q4_1, TensorKind.Q8_A])
def test_padding_shows_scales_that_lie_row_by_row(tmp_path: Path, kind: TensorKind) -> None:
    """Rows that are all alike show no order, but 320 columns fill a second tile by a quarter."""

    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        return [row_by_row(usual, values.shape, kind)] if name == DOWN else None

    write(tmp_path, "qwen2", kind, change)
    assert found(tmp_path, "container.scales_swapped").where.field == DOWN


def row_by_row(usual: TensorSpec, shape: tuple[int, ...], kind: TensorKind) -> TensorSpec:
    """Turn the scale planes of tiles from [groups, 32] to [32, groups]."""
    data = np.concatenate(list(usual.produce()))
    records = tile_records(TensorView(usual.name, kind, shape, data))
    for plane in {"d", "m", "s", "z"} & set(records.dtype.names or ()):
        turned = records[plane].transpose(0, 1, 3, 2)
        records[plane] = turned.reshape(records[plane].shape)
    return tiles(usual.name, data, kind)[0]


def scaled_embedding(factor: float, dtype: TensorKind) -> Change:
    """Store the embedding times `factor`."""

    def change(name: str, values: Values, usual: TensorSpec) -> list[TensorSpec] | None:
        return [encode(name, values * np.float32(factor), dtype)] if name == EMBED else None

    return change


@pytest.mark.parametrize("stored", [TensorKind.BF16, TensorKind.Q8_A, TensorKind.Q4_1])
@pytest.mark.parametrize(
    ("factor", "looks"), [(1 / 16, "not multiplied"), (1.0, None), (16.0, "twice")]
)
def test_the_scale_of_an_embedding_that_is_its_own_head(
    tmp_path: Path, stored: TensorKind, factor: float, looks: str | None
) -> None:
    """Gemma's tiny hidden size is 256: right is a root mean square near 1, wrong 16 times off."""
    write(tmp_path, "gemma3", TensorKind.Q4_1, scaled_embedding(factor, stored))
    if looks is None:
        assert loud(tmp_path) == []
        return
    finding = found(tmp_path, "container.embedding_scale")
    assert finding.severity is Severity.WARNING
    assert finding.where.field == EMBED
    assert looks in finding.what


@pytest.mark.parametrize("factor", [1 / 16, 16.0])
def test_the_scale_of_an_embedding_beside_an_untied_head(tmp_path: Path, factor: float) -> None:
    change = scaled_embedding(factor, TensorKind.BF16)
    write(tmp_path, "gemma3", TensorKind.Q4_1, change, tie_word_embeddings=False)
    assert loud(tmp_path) == ["container.embedding_scale"]


@pytest.mark.parametrize("family", ["llama", "qwen2", "minicpm"])
@pytest.mark.parametrize("factor", [1 / 16, 16.0])
def test_families_that_store_no_scale_are_not_judged_by_size(
    tmp_path: Path, family: str, factor: float
) -> None:
    write(tmp_path, family, TensorKind.Q4_1, scaled_embedding(factor, TensorKind.BF16))
    assert loud(tmp_path) == []
