"""Detectors: each planted trap is seen, and the sound tensor beside it is not accused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from container_bytes import TILED, packed, view_of

from onebit.container import TensorKind, TensorView, decode
from onebit.container.codecs import q4
from onebit.container.codecs.tiles import tile_records
from onebit.container.detect import (
    code_use,
    q8_in_q4_share,
    q8_layout,
    sample_tiles,
    tie,
    tile_runs,
    zero_convention,
)
from onebit.container.meta_order import meta_order
from onebit.container.scan import compare, scan_padding, scan_scales

K = TensorKind


def weights(shape: tuple[int, ...] = (256, 576), seed: int = 0) -> np.ndarray:
    """Return weights whose rows and columns differ in size, as trained ones do."""
    rng = np.random.default_rng(seed)
    rows, cols = np.exp(rng.normal(0, 0.4, shape[0])), np.exp(rng.normal(0, 0.2, shape[1]))
    base = rng.normal(0, 0.05, shape) * rows[:, None] * cols
    return base.astype(np.float32)


def edited(view: TensorView) -> tuple[TensorView, np.ndarray]:
    """Return a copy of a view and its tile records, to be changed."""
    copy = replace(view, data=view.data.copy())
    return copy, tile_records(copy)


class TestZeroConvention:
    @pytest.mark.parametrize(
        ("kind", "verdict"),
        [(K.Q4_1, "additive"), (K.Q4_0, "signed"), (K.Q4NX, "subtractive")],
    )
    def test_told(self, kind: TensorKind, verdict: str) -> None:
        found = zero_convention(view_of(kind, weights()))
        assert found.verdict == verdict
        assert found.groups == 256 * 18  # all 24 tiles, without the padding

    def test_ratio_of_repacked_q4_0_is_minus_eight(self) -> None:
        signed = q4.quantize_q4_0(weights())
        codes = (signed.codes + np.int8(8)).astype(np.uint8)
        planes = replace(signed, codes=codes, m=q4.offset_from_signed(signed.d))
        data = q4.pack(K.Q4_1, planes)
        found = zero_convention(TensorView("w", K.Q4_1, (256, 576), data))
        assert (found.verdict, found.ratio_median) == ("additive", -8.0)
        assert (signed.d < 0).any()

    def test_copied_scales(self) -> None:
        view, tiles = edited(view_of(K.Q4_1, weights()))
        tiles["m"] = tiles["d"]
        found = zero_convention(view)
        assert (found.verdict, found.copied_share) == ("copied", 1.0)

    def test_empty(self) -> None:
        assert zero_convention(view_of(K.Q4_1, np.zeros((32, 256), np.float32))).groups == 0

    def test_positive_weights_stay_additive_or_unknown(self) -> None:
        """Groups far above zero have m > 0 and small d; that is no zero point."""
        found = zero_convention(view_of(K.Q4_1, np.abs(weights()) + 1))
        assert found.verdict in ("additive", "unknown")


class TestCodes:
    def test_q4_1_touches_both_ends_only_in_the_right_order(self) -> None:
        right = view_of(K.Q4_1, weights())
        assert code_use(right).both_ends > 0.99
        view, tiles = edited(right)
        tiles["q"] = tiles["q"].transpose(0, 1, 2, 4, 3).reshape(tiles["q"].shape)
        assert 0.4 < code_use(view).both_ends < 0.8

    def test_q4_0_touches_the_lowest(self) -> None:
        use = code_use(view_of(K.Q4_0, weights()))
        assert use.lowest > 0.99
        assert use.both_ends < 0.7

    @pytest.mark.parametrize("kind", [K.Q8_A, K.Q8_B])
    @pytest.mark.parametrize("shape", [(32, 256), (256, 576), (3200, 576)])
    def test_q8_layout(self, kind: TensorKind, shape: tuple[int, int]) -> None:
        found = q8_layout(view_of(kind, weights(shape)))
        assert found.verdict is kind
        right, wrong = sorted((found.share_a, found.share_b), reverse=True)
        assert right > 0.99
        assert 0.6 < wrong < 0.85

    def test_q8_layout_of_nothing(self) -> None:
        assert q8_layout(view_of(K.Q8_B, np.zeros((32, 256), np.float32))).verdict is K.Q8_A

    def test_q8_in_q4(self) -> None:
        assert q8_in_q4_share(view_of(K.Q8_IN_Q4, weights())) == 1
        assert q8_in_q4_share(view_of(K.Q4_1, weights())) == 0
        assert q8_in_q4_share(view_of(K.Q4_1, np.zeros((32, 256), np.float32))) == 0


class TestMetaOrder:
    @pytest.mark.parametrize("cols", [576, 512])
    @pytest.mark.parametrize("kind", [K.Q4_1, K.Q4_0, K.Q8_A])
    def test_row_major_scales_are_seen(self, kind: TensorKind, cols: int) -> None:
        right = view_of(kind, weights((256, cols)))
        assert not meta_order(right).swapped
        view, tiles = edited(right)
        for field in {"d", "m"} & set(tiles.dtype.names or ()):
            tiles[field] = tiles[field].transpose(0, 1, 3, 2).reshape(tiles[field].shape)
        found = meta_order(view)
        assert found.swapped
        assert found.row_major > found.group_major

    def test_alike_rows_accuse_nobody(self) -> None:
        plain = np.random.default_rng(0).normal(0, 1, (256, 512)).astype(np.float32)
        assert not meta_order(view_of(K.Q4_1, plain)).swapped
        assert not meta_order(view_of(K.Q4_1, np.zeros((32, 256), np.float32))).swapped


class TestTie:
    def test_tied_untied_and_scaled(self) -> None:
        embed = weights((512, 576))
        plain = view_of(K.BF16, embed)
        tied = tie(view_of(K.Q4_1, embed), plain)
        assert tied.cosine > 0.99
        assert tied.rows == 256
        assert tied.std_ratio == pytest.approx(1, abs=0.02)
        assert abs(tie(view_of(K.Q4_1, weights((512, 576), 9)), plain).cosine) < 0.1
        scaled = view_of(K.BF16, embed * np.float32(24))
        assert tie(view_of(K.Q8_A, embed), scaled).std_ratio == pytest.approx(24, rel=0.02)

    def test_a_wrong_reading_is_not_tied(self) -> None:
        embed = weights((512, 576))
        wrong = TensorView("w", K.Q8_B, (512, 576), packed(K.Q8_A, embed))
        assert abs(tie(wrong, view_of(K.BF16, embed)).cosine) < 0.2


def test_samples_are_tiles_of_the_tensor() -> None:
    view = view_of(K.Q4_1, weights((3200, 576)))
    sample = sample_tiles(view, 16)
    assert sample.shape == (512, 256)
    tiles = {tile.tobytes() for tile in view.data.reshape(-1, 5120)}
    picked = [tile.tobytes() for tile in sample.data.reshape(-1, 5120)]
    assert len(set(picked)) == 16
    assert set(picked) <= tiles


def test_runs_cover_every_tile_once() -> None:
    view, tiles = edited(view_of(K.Q4_1, weights((320, 576))))
    tiles["m"][7, 2] = tiles["d"][7, 2]  # one bad tile among thirty
    runs = list(tile_runs(view, 8))
    assert [run.rows // 32 for run in runs] == [8, 8, 8, 6]
    np.testing.assert_array_equal(np.concatenate([run.data for run in runs]), view.data)
    shares = [zero_convention(run, 8).copied_share for run in runs]
    assert shares == [0, 0, 1 / 8, 0]


class TestScan:
    @pytest.mark.parametrize("kind", TILED)
    def test_sound(self, kind: TensorKind) -> None:
        view = view_of(kind, weights((70, 600)))
        seen: list[int] = []
        found = scan_scales(view, seen.append)
        assert (found.nonfinite, found.absurd, found.first_bad) == (0, 0, None)
        assert found.count == 70 * 19
        assert sum(seen) == view.data.size
        assert scan_padding(view).rows == scan_padding(view).groups == 0

    @pytest.mark.parametrize("kind", TILED)
    def test_one_bad_scale_is_found_with_its_byte(self, kind: TensorKind) -> None:
        view, tiles = edited(view_of(kind, weights((70, 600))))
        field = "S" if kind is K.Q4_K else "d"
        tiles[field].reshape(tiles.shape[0], tiles.shape[1], -1)[1, 1, 5] = 0x7F80
        found = scan_scales(view)
        tile = tiles.shape[1] + 1
        offset = (4608 if kind is K.Q4_K else 0) + 2 * 5
        assert (found.nonfinite, found.first_bad) == (1, tile * kind.tile_bytes + offset)

    def test_nan_zero_plane_empty_groups_and_absurd(self) -> None:
        view, tiles = edited(view_of(K.Q4_1, weights((64, 512))))
        tiles["m"][1, 0, 2, 3] = 0x7FC0
        tiles["d"][0, 0, 0, :4] = tiles["m"][0, 0, 0, :4] = 0
        tiles["d"][0, 1, 7, 31] = 0x4480  # 1024
        found = scan_scales(view)
        assert (found.nonfinite, found.zero, found.absurd) == (1, 4, 1)
        assert found.max_abs == 1024
        assert found.first_bad == 2 * 5120 + 512 + 2 * (2 * 32 + 3)

    def test_plain_values(self) -> None:
        values = weights((40, 30))
        values[3, 4] = np.nan
        values[0, 0] = 0
        found = scan_scales(view_of(K.BF16, values))
        assert (found.count, found.zero, found.nonfinite) == (1200, 1, 1)
        assert found.first_bad == 2 * (3 * 30 + 4)

    def test_padding_that_is_not_zero(self) -> None:
        view, tiles = edited(view_of(K.Q8_A, weights((33, 288))))
        tiles["d"][1, 0, 0, 5] = 0x3F80
        tiles["q"][1, 0, 0, 0, 5] = 3
        tiles["d"][0, 1, 2, 0] = 0x3F80
        tiles["q"][0, 1, 0, 64, 0] = 3
        found = scan_padding(view)
        assert (found.rows, found.groups) == (1, 1)


def test_compare_in_blocks() -> None:
    wanted = weights((5000, 1024))
    view = view_of(K.Q4_1, wanted)
    found = compare(view, lambda start, stop: wanted[start:stop])
    error = decode(view).astype(np.float64) - wanted
    assert found.max_abs == pytest.approx(np.abs(error).max())
    assert found.rms == pytest.approx(np.sqrt(np.square(error).mean()))
    assert found.cosine > 0.995
    shuffled = compare(view, lambda start, stop: wanted[start:stop][::-1])
    assert abs(shuffled.cosine) < 0.1
