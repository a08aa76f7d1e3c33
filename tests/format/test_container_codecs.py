"""Every kind: byte maps, exact decoding against a slow oracle, exact packing."""

from __future__ import annotations

import numpy as np
import pytest
from container_bytes import (
    PLAIN,
    TILED,
    at_odd_address,
    bf16_at,
    naive_decode,
    packed,
    view_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.container import (
    TensorKind,
    TensorView,
    decode,
    decode_rows,
    iter_blocks,
    planes,
    tensor_bytes,
    tile_grid,
)
from onebit.container.bits import bf16_to_f32, f32_to_bf16, round_to_bf16
from onebit.container.codecs import plain, q4, q4_k, q8
from onebit.container.codecs.tiles import TILES, Planes
from onebit.container.decode import k_planes, stored_planes

K = TensorKind
SETTINGS = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)
shapes = st.tuples(st.integers(1, 70), st.integers(1, 300))


def weights(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)


def one_code(kind: TensorKind, row: int, col: int, code: int) -> bytes:
    """Return the bytes of one tile whose only code is at (row, col)."""
    codes = np.zeros((32, 256), np.int8 if kind in (K.Q8_A, K.Q8_B) else np.uint8)
    codes[row, col] = code
    ones = np.ones((32, 8), np.float32)
    if kind is K.Q4_K:
        u8 = np.zeros((32, 8), np.uint8)
        S = np.ones((32, 1), np.float32)
        return q4_k.pack(q4_k.KPlanes(S, S, u8, u8, codes)).tobytes()
    if kind is K.Q4_1:
        return q4.pack(kind, Planes(ones, codes, m=ones)).tobytes()
    return q8.pack(kind, Planes(ones, codes)).tobytes()


@pytest.mark.parametrize(
    ("kind", "row", "col", "byte", "high"),
    [
        (K.Q4_1, 0, 0, 1024, False),
        (K.Q4_1, 1, 0, 1024, True),
        (K.Q4_1, 2, 0, 1025, False),
        (K.Q4_1, 15, 0, 1031, True),
        (K.Q4_1, 16, 0, 3072, False),
        (K.Q4_1, 0, 1, 1032, False),
        (K.Q4_1, 31, 255, 5119, True),
        (K.Q4_K, 0, 0, 512, False),
        (K.Q4_K, 2, 0, 513, False),
        (K.Q4_K, 16, 0, 520, False),
        (K.Q4_K, 0, 1, 528, False),
        (K.Q4_K, 31, 255, 4607, True),
        (K.Q8_A, 1, 0, 513, None),
        (K.Q8_A, 0, 1, 544, None),
        (K.Q8_A, 31, 255, 8703, None),
        (K.Q8_B, 1, 0, 513, None),
        (K.Q8_B, 0, 1, 528, None),
        (K.Q8_B, 16, 0, 4608, None),
        (K.Q8_B, 31, 255, 8703, None),
    ],
)
def test_where_a_code_lies(
    kind: TensorKind, row: int, col: int, byte: int, high: bool | None
) -> None:
    code = 5 if high is not None else 117
    empty, tile = one_code(kind, row, col, 0), one_code(kind, row, col, code)
    changed = [i for i, (a, b) in enumerate(zip(empty, tile, strict=True)) if a != b]
    assert changed == [byte]
    assert tile[byte] == (code << 4 if high else code)


@pytest.mark.parametrize(("row", "group", "byte"), [(0, 1, 64), (31, 7, 510)])
def test_where_a_scale_lies(row: int, group: int, byte: int) -> None:
    d = np.zeros((32, 8), np.float32)
    d[row, group] = 1.5
    codes = np.zeros((32, 256), np.uint8)
    tile = q4.pack(K.Q4_1, Planes(d, codes, m=2 * d)).tobytes()
    assert bf16_at(tile, byte) == 1.5
    assert bf16_at(tile, byte + 512) == 3.0
    assert sum(value != 0 for value in tile) == 4


@pytest.mark.parametrize("kind", TILED)
def test_tile_sizes(kind: TensorKind) -> None:
    assert TILES[kind].itemsize == kind.tile_bytes
    expected = -(-70 // 32) * -(-600 // kind.tile_cols) * kind.tile_bytes
    assert tensor_bytes(kind, (70, 600)) == expected
    assert packed(kind, weights(0, (70, 600))).size == expected


def test_smollm2_rows_of_576_take_three_tiles() -> None:
    assert tile_grid(K.Q4_1, (192, 576)) == (6, 3)
    assert tensor_bytes(K.Q4_1, (192, 576)) == 92160


@pytest.mark.parametrize("kind", TILED)
def test_random_bytes_decode_as_the_oracle_says(kind: TensorKind) -> None:
    """Any bytes at all, NaN and infinite scales too, at an odd address."""
    rng = np.random.default_rng(7)
    shape = (41, 270)
    data = rng.integers(0, 256, tensor_bytes(kind, shape), np.uint8)
    view = TensorView("w", kind, shape, at_odd_address(data))
    with np.errstate(all="ignore"):
        expected = naive_decode(view)
    assert not np.isfinite(expected).all()
    np.testing.assert_array_equal(decode(view), expected)


@pytest.mark.parametrize("kind", TILED)
@given(seed=seeds, shape=shapes, data=st.data())
@SETTINGS
def test_planes_round_trip(
    kind: TensorKind, seed: int, shape: tuple[int, int], data: st.DataObject
) -> None:
    view = view_of(kind, weights(seed, shape))
    if kind is K.Q4_K:
        stored = k_planes(view)
        again = q4_k.pack(stored)
    else:
        codec = q8 if kind in (K.Q8_A, K.Q8_B, K.Q8_IN_Q4) else q4
        again = codec.pack(kind, planes(view))
    np.testing.assert_array_equal(again, view.data)
    values = decode(view)
    rows = data.draw(st.lists(st.integers(0, shape[0] - 1), max_size=12))
    np.testing.assert_array_equal(decode_rows(view, rows), values[rows])
    blocks = list(iter_blocks(view, values=1))
    assert [start for start, _ in blocks] == list(range(0, shape[0], 32))
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), values)


@given(seed=seeds, shape=shapes)
@SETTINGS
def test_ragged_shapes_match_the_oracle(seed: int, shape: tuple[int, int]) -> None:
    kind = TILED[seed % len(TILED)]
    small = (min(shape[0], 40), min(shape[1], 70))
    view = view_of(kind, weights(seed, small))
    np.testing.assert_array_equal(decode(view), naive_decode(view))


@pytest.mark.parametrize("kind", TILED)
def test_padding_decodes_to_zero(kind: TensorKind) -> None:
    values = stored_planes(view_of(kind, weights(3, (33, 288)))).values()
    assert values.shape[0] == 64
    assert not values[33:].any()
    assert not values[:, 288:].any()


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        (K.Q4_1, 0.0125),
        (K.Q4_1_X64, 0.0125),
        (K.Q4NX, 0.0140),
        (K.Q4_0, 0.0300),
        (K.Q4_K, 0.0140),
        (K.Q8_A, 0.0011),
        (K.Q8_B, 0.0011),
        (K.Q8_IN_Q4, 0.0011),
    ],
)
def test_quantising_keeps_values_near(kind: TensorKind, bound: float) -> None:
    wanted = weights(11, (64, 512))
    got = decode(view_of(kind, wanted))
    assert np.abs(got - wanted).max() < bound
    assert np.corrcoef(got.ravel(), wanted.ravel())[0, 1] > 0.995


def test_q4_1_covers_the_whole_group() -> None:
    """m is rounded down and d up, so no value lies beyond the codes by more than half a step."""
    wanted = weights(2, (32, 256))
    got = q4.quantize(wanted)
    error = np.abs(got.values() - wanted).reshape(32, 8, 32)
    assert (error <= got.d[:, :, None] * np.float32(0.5001)).all()


def test_a_ragged_group_is_scaled_by_real_values_only() -> None:
    wanted = np.full((1, 40), 3.0, np.float32) + np.linspace(0, 1, 40, dtype=np.float32)
    got = decode(view_of(K.Q4_1, wanted))
    assert np.abs(got - wanted).max() < 0.03


@pytest.mark.parametrize("kind", [K.Q4_1, K.Q4_K, K.Q8_A, K.Q4_0])
def test_constant_groups_need_no_division(kind: TensorKind) -> None:
    zeros = np.zeros((32, 256), np.float32)
    assert not decode(view_of(kind, zeros)).any()
    half = np.full((32, 256), -0.5, np.float32)
    np.testing.assert_allclose(decode(view_of(kind, half)), half, rtol=2**-8)


def test_signed_and_unsigned_q4_0_hold_the_same_values() -> None:
    """Nibble ^ 8 with m = -8 d is the same weight as the two's complement nibble."""
    signed = q4.quantize_q4_0(weights(5, (32, 256)))
    unsigned = (signed.codes + np.int8(8)).astype(np.uint8)
    offset = Planes(signed.d, unsigned, m=q4.offset_from_signed(signed.d))
    np.testing.assert_array_equal(offset.values(), signed.values())


def test_q4_k_turns_into_q4_1_with_the_same_codes() -> None:
    view = view_of(K.Q4_K, weights(6, (40, 300)))
    tiles = q4_k.to_q4_1(q4_k.KPlanes(**vars(k_planes(view))))
    other = TensorView("w", K.Q4_1, (64, 512), tiles)
    flat = stored_planes(view)
    np.testing.assert_array_equal(planes(other).codes, flat.codes)
    np.testing.assert_array_equal(planes(other).d, round_to_bf16(flat.d))
    np.testing.assert_array_equal(planes(other).m, round_to_bf16(flat.m))
    k_tile, q_tile = view.data[:4736], tiles[:5120]
    for h, k, j in [(0, 0, 0), (1, 0, 3), (0, 200, 7), (1, 255, 7)]:
        assert q_tile[1024 + h * 2048 + k * 8 + j] == k_tile[512 + k * 16 + h * 8 + j]


def test_two_level_fit_is_near_and_keeps_the_sign() -> None:
    rng = np.random.default_rng(8)
    d = rng.uniform(0.001, 0.01, (64, 16)).astype(np.float32)
    for targets in (d, -d):
        P, p = q4_k.fit_two_levels(targets)
        np.testing.assert_array_equal(round_to_bf16(P), P)
        assert (np.abs(P) * 255 >= np.abs(targets).reshape(64, 2, 8).max(axis=2)).all()
        approximate = np.repeat(P, 8, axis=1) * p
        error = np.sqrt(np.square(approximate - targets).mean() / np.square(targets).mean())
        assert error < 4.5e-3
        assert (np.sign(P) == np.sign(targets[0, 0])).all()


def test_two_level_fit_never_overflows_a_byte() -> None:
    """The first P is rounded up, so the greatest value needs at most 255."""
    targets = np.full((1, 8), 0.999999, np.float32)
    P, p = q4_k.fit_two_levels(targets)
    np.testing.assert_allclose(P * p, targets, rtol=2e-3)
    assert q4_k.fit_two_levels(np.zeros((1, 8), np.float32))[1].max() == 0


@pytest.mark.parametrize("kind", PLAIN)
@given(seed=seeds, shape=shapes)
@SETTINGS
def test_plain_kinds_are_exact(kind: TensorKind, seed: int, shape: tuple[int, int]) -> None:
    wanted = weights(seed, shape)
    view = view_of(kind, wanted)
    stored = {
        K.BF16: bf16_to_f32(f32_to_bf16(wanted)),
        K.F16: wanted.astype(np.float16).astype(np.float32),
        K.F32: wanted,
    }[kind]
    np.testing.assert_array_equal(decode(view), stored)
    np.testing.assert_array_equal(decode_rows(view, [0, shape[0] - 1]), stored[[0, -1]])
    np.testing.assert_array_equal(plain.pack(kind, stored), view.data)


def test_vectors_keep_their_shape() -> None:
    view = view_of(K.BF16, weights(1, (576,)))
    assert (view.rows, view.cols) == (1, 576)
    assert decode(view).shape == (576,)


@given(seed=seeds, shape=shapes)
@SETTINGS
def test_int8_tables(seed: int, shape: tuple[int, int]) -> None:
    wanted = weights(seed, shape)
    codes, scale = plain.quantize_int8(wanted)
    assert scale.shape == (shape[0], -(-shape[1] // 32))
    view = TensorView("t", K.INT8, shape, codes.reshape(-1).view(np.uint8), scale)
    got = decode(view)
    expected = np.array(
        [
            [np.float32(codes[r, c]) * scale[r, c // 32] for c in range(shape[1])]
            for r in range(shape[0])
        ],
        np.float32,
    )
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(decode_rows(view, [shape[0] - 1]), expected[-1:])
    assert np.abs(got - wanted).max() <= np.abs(wanted).max() / 127


@pytest.mark.parametrize("rows", [[-1], [40], [0, 99]])
def test_rows_out_of_range_are_refused(rows: list[int]) -> None:
    with pytest.raises(IndexError, match="w: rows"):
        decode_rows(view_of(K.Q4_1, weights(1, (40, 256))), rows)


def test_wrong_planes_are_refused() -> None:
    ones, codes = np.ones((32, 8), np.float32), np.full((32, 256), 16, np.uint8)
    with pytest.raises(ValueError, match=r"0\.\.15"):
        q4.pack(K.Q4_1, Planes(ones, codes, m=ones))
    with pytest.raises(ValueError, match="wrong zero"):
        q4.pack(K.Q4_0, Planes(ones, codes, m=ones))
    with pytest.raises(ValueError, match="int8 codes"):
        q8.pack(K.Q8_A, Planes(ones, codes))
    with pytest.raises(ValueError, match="takes 5120 bytes, got 5119"):
        TensorView("w", K.Q4_1, (32, 256), np.zeros(5119, np.uint8))
