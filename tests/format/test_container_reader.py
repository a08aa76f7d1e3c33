"""Opening, mapping, and telling how a tensor is stored."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from container_bytes import TILED, container, packed, spec, tensor, tiles_spec, write
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.container import Container, TensorKind, TensorSpec, decode
from onebit.container.codecs import plain
from onebit.container.scan import scan_scales
from onebit.findings import InputError

K = TensorKind
SHAPE = (96, 576)


def weights(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)


def code_of(call: object) -> str:
    with pytest.raises(InputError) as caught:
        call()  # type: ignore[operator]
    (found,) = caught.value.findings
    assert found.mend
    assert found.where.file
    return found.code


def int8_specs(name: str, values: np.ndarray) -> tuple[TensorSpec, TensorSpec]:
    codes, scale = plain.quantize_int8(values)
    return (
        spec(name, "I8", codes.shape, codes),
        spec(f"{name}.scale", "F32", scale.shape, scale),
    )


@pytest.mark.parametrize("kind", TILED)
def test_every_tile_kind_is_told_from_its_bytes(tmp_path: Path, kind: TensorKind) -> None:
    dtype, shape = "I8", (packed(kind, weights()).size // kind.tile_bytes, kind.tile_bytes)
    if kind is K.Q4NX:
        dtype, shape = "Q4NX", SHAPE
    path = write(tmp_path / "m.q4nx", spec("w", dtype, shape, packed(kind, weights())))
    with Container.open(path) as opened:
        assert opened.kind_of("w", SHAPE) is kind
        got = decode(opened.view("w", SHAPE, kind))
    assert np.corrcoef(got.ravel(), weights().ravel())[0, 1] > 0.99


@pytest.mark.parametrize("dtype", ["I8", "Q4NX"])
@pytest.mark.parametrize("kind", [K.Q4_1, K.Q4NX, K.Q4_0])
def test_the_bytes_decide_the_zero_not_the_dtype(
    tmp_path: Path, kind: TensorKind, dtype: str
) -> None:
    data = packed(kind, weights())
    shape = SHAPE if dtype == "Q4NX" else (data.size // 5120, 5120)
    path = write(tmp_path / "m.q4nx", spec("w", dtype, shape, data))
    with Container.open(path) as opened:
        assert opened.kind_of("w", SHAPE) is kind


@pytest.mark.parametrize("dtype", ["I8", "Q4NX"])
def test_empty_tensors_follow_the_dtype(tmp_path: Path, dtype: str) -> None:
    shape = (32, 256) if dtype == "Q4NX" else (1, 5120)
    path = write(tmp_path / "m.q4nx", spec("w", dtype, shape, bytes(5120)))
    with Container.open(path) as opened:
        assert opened.kind_of("w", (32, 256)) is (K.Q4NX if dtype == "Q4NX" else K.Q4_1)


@pytest.mark.parametrize("kind", [K.Q4_1, K.Q4_K, K.Q8_A, K.Q8_B, K.Q8_IN_Q4])
def test_tiles_in_three_axes(tmp_path: Path, kind: TensorKind) -> None:
    shape = (64, 576)
    down, across, size = 2, -(-576 // kind.tile_cols), kind.tile_bytes
    data = packed(kind, weights(shape))
    path = write(tmp_path / "m.q4nx", spec("w", "I8", (down, across, size), data))
    flipped = (across * 32, down * kind.tile_cols)
    with Container.open(path) as opened:
        assert opened.kind_of("w", shape) is kind
        assert code_of(lambda: opened.kind_of("w", flipped)) == "container.shape_mismatch"


class TestQuarterTiles:
    """[n, 1280] of Gemma3-1B, hidden 1152: sized by bytes, never by the first axis."""

    @pytest.mark.parametrize("kind", [K.Q4_1, K.Q4_1_X64])
    @pytest.mark.parametrize("cols", [1152, 1024])
    def test_both_readings(self, tmp_path: Path, kind: TensorKind, cols: int) -> None:
        """1152 columns differ in size; 1024 do not, and the codes decide."""
        shape = (64, cols)
        data = packed(kind, weights(shape))
        path = write(tmp_path / "m.q4nx", spec("w", "I8", (data.size // 1280, 1280), data))
        with Container.open(path) as opened:
            assert opened.kind_of("w", shape) is kind


class TestInt8Tables:
    def test_the_partner_makes_it_a_table(self, tmp_path: Path) -> None:
        """5120 columns look like tiles; the scale partner comes first."""
        shape = (32, 5120)
        path = write(tmp_path / "m.q4nx", *int8_specs("t", weights(shape)))
        with Container.open(path) as opened:
            assert opened.kind_of("t", shape) is K.INT8
            view = opened.view("t", shape, K.INT8)
            assert view.scale is not None
            assert view.scale.shape == (32, 160)
            assert np.abs(decode(view) - weights(shape)).max() < 1e-3

    def test_without_a_partner_it_is_refused(self, tmp_path: Path) -> None:
        table, _ = int8_specs("t", weights((32, 100)))
        with Container.open(write(tmp_path / "m.q4nx", table)) as opened:
            assert code_of(lambda: opened.kind_of("t", (32, 100))) == "container.int8_scale"

    def test_a_wrong_partner_is_refused(self, tmp_path: Path) -> None:
        table, _ = int8_specs("t", weights((32, 100)))
        bad = spec("t.scale", "F32", (32, 3), bytes(384))
        with Container.open(write(tmp_path / "m.q4nx", table, bad)) as opened:
            assert code_of(lambda: opened.view("t", (32, 100), K.INT8)) == "container.int8_scale"

    def test_scales_at_an_odd_offset(self, tmp_path: Path) -> None:
        codes, scale = plain.quantize_int8(weights((4, 64)))
        tree = {
            "t": tensor("I8", (4, 64), 1, 257),
            "t.scale": tensor("F32", (4, 2), 257, 289),
        }
        data = b"\0" + codes.tobytes() + scale.tobytes()
        path = tmp_path / "m.q4nx"
        path.write_bytes(container(tree, data))
        with Container.open(path) as opened:
            view = opened.view("t", (4, 64), K.INT8)
            assert view.scale is not None
            assert view.scale.flags.aligned
            np.testing.assert_array_equal(view.scale, scale)


@pytest.mark.parametrize(("kind", "dtype"), [(K.BF16, "BF16"), (K.F16, "F16"), (K.F32, "F32")])
def test_plain_kinds(tmp_path: Path, kind: TensorKind, dtype: str) -> None:
    values = weights((7, 9))
    path = write(tmp_path / "m.q4nx", spec("w", dtype, (7, 9), packed(kind, values)))
    with Container.open(path) as opened:
        assert opened.kind_of("w", (7, 9)) is kind
        np.testing.assert_allclose(decode(opened.view("w", (7, 9), kind)), values, rtol=2**-8)
        for wrong in [(9, 7), (63,), (7, 10)]:
            assert code_of(lambda s=wrong: opened.kind_of("w", s)) == "container.shape_mismatch"
        assert code_of(lambda: opened.view("w", (7, 9), K.Q4_1)) == "container.kind_mismatch"


@pytest.mark.parametrize("begin", [1, 3, 63])
@pytest.mark.parametrize("kind", [*TILED, K.BF16, K.F16, K.F32])
def test_odd_offsets_are_fine(tmp_path: Path, kind: TensorKind, begin: int) -> None:
    data = packed(kind, weights((33, 300)))
    dtype = kind.name if kind in (K.BF16, K.F16, K.F32) else "I8"
    shape = (33, 300) if dtype != "I8" else (data.size // kind.tile_bytes, kind.tile_bytes)
    tree = {"w": tensor(dtype, shape, begin, begin + data.size)}
    path = tmp_path / "m.q4nx"
    path.write_bytes(container(tree, bytes(begin) + data.tobytes()))
    aligned = write(tmp_path / "aligned.q4nx", spec("w", dtype, shape, data))
    with Container.open(path) as opened, Container.open(aligned) as other:
        view = opened.view("w", (33, 300), kind)
        np.testing.assert_array_equal(decode(view), decode(other.view("w", (33, 300), kind)))


class TestMisfits:
    """What does not fit is said with both sizes."""

    def test_tiles_expected_and_found(self, tmp_path: Path) -> None:
        path = write(tmp_path / "m.q4nx", tiles_spec("q", K.Q4_1, weights()))
        with (
            Container.open(path) as opened,
            pytest.raises(
                InputError,
                match=r"6 x 3 tiles of 5120 bytes, 92160 in all; the file "
                r"holds 46080 bytes as I8 \[9, 5120\]",
            ),
        ):
            opened.kind_of("q", (192, 576))

    def test_half_the_columns_are_not_8_bit_tiles(self, tmp_path: Path) -> None:
        """As q8_in_q4, half the columns take the same bytes; the tiles' own marks say no."""
        path = write(tmp_path / "m.q4nx", tiles_spec("q", K.Q4_1, weights((32, 512))))
        with Container.open(path) as opened:
            assert code_of(lambda: opened.kind_of("q", (32, 256))) == "container.shape_mismatch"

    @pytest.mark.parametrize("size", [4608, 9216, 5632, 9728, 2560])
    def test_known_tiles_we_do_not_read_are_named(self, tmp_path: Path, size: int) -> None:
        path = write(tmp_path / "m.q4nx", spec("w", "I8", (1, size), bytes(size)))
        with Container.open(path) as opened:
            assert code_of(lambda: opened.kind_of("w", (32, 256))) == "container.kind_unsupported"

    @pytest.mark.parametrize("dtype", ["U8", "BOOL", "F8_E4M3"])
    def test_another_dtype_of_the_same_size_is_no_tile(self, tmp_path: Path, dtype: str) -> None:
        data = packed(K.Q4_1, weights((32, 256)))
        path = write(tmp_path / "m.q4nx", spec("w", dtype, (1, 5120), data))
        with Container.open(path) as opened:
            assert code_of(lambda: opened.kind_of("w", (32, 256))).startswith("container.")
            assert code_of(lambda: opened.view("w", (32, 256), K.Q4_1)) == "container.kind_mismatch"

    def test_a_missing_tensor(self, tmp_path: Path) -> None:
        path = write(tmp_path / "m.q4nx", tiles_spec("model.norm", K.Q4_1, weights()))
        with Container.open(path) as opened:
            for name in ("model", "model.norm.weight", "model.nor"):
                assert code_of(lambda n=name: opened.raw(n)) == "container.missing_tensor"

    def test_eight_bits_cut_to_four_are_lost(self, tmp_path: Path) -> None:
        """Trap T4: the scale plane stands there twice."""
        data = packed(K.Q4_1, weights()).reshape(-1, 5120).copy()
        data[:, 512:1024] = data[:, :512]
        path = write(tmp_path / "m.q4nx", spec("w", "I8", data.shape, data))
        with Container.open(path) as opened:
            assert code_of(lambda: opened.kind_of("w", SHAPE)) == "container.q8_cut_to_q4"

    def test_a_layout_that_cannot_be_told_is_asked_for(self, tmp_path: Path) -> None:
        data = packed(K.Q8_A, weights()).reshape(-1, 8704).copy()
        codes = data[:, 512:]
        codes[:] = codes.view(np.int8) // 2
        path = write(tmp_path / "m.q4nx", spec("w", "I8", data.shape, data))
        with Container.open(path) as opened:
            assert code_of(lambda: opened.kind_of("w", SHAPE)) == "container.q8_layout"
        beside = tiles_spec("k", K.Q4_K, weights())
        path = write(tmp_path / "m.q4nx", spec("w", "I8", data.shape, data), beside)
        with Container.open(path) as opened:
            assert opened.kind_of("w", SHAPE) is K.Q8_A


def test_logical_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.q4nx",
        tiles_spec("head", K.Q8_A, weights((100, 300))),
        spec("e", "BF16", (100, 300), bytes(60000)),
    )
    with Container.open(path) as opened:
        assert opened.logical_rows("head", 300, K.Q8_A) == 128
        assert opened.logical_rows("e", 300, K.BF16) == 100
        assert opened.logical_rows("e", 301, K.BF16) is None


def test_views_are_read_only_and_copy_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "m.q4nx", tiles_spec("w", K.Q4_1, weights()))
    with Container.open(path) as opened:
        view = opened.view("w", SHAPE, K.Q4_1)
        assert not view.data.flags.writeable
        assert np.shares_memory(view.data, opened.raw("w"))
        assert np.shares_memory(view.block(32, 64).data, view.data)
        assert opened.entries["w"].begin % 64 == 0


class TestChangedFile:
    """A file that shrinks after it was opened is an error, not a bus fault."""

    def test_cut_short(self, tmp_path: Path) -> None:
        path = write(tmp_path / "m.q4nx", tiles_spec("w", K.Q4_1, weights()))
        with Container.open(path) as opened:
            view = opened.view("w", SHAPE, K.Q4_1)
            os.truncate(path, opened.entries["w"].begin + 10)
            assert code_of(lambda: opened.raw("w")) == "container.changed"
            assert code_of(lambda: opened.kind_of("w", SHAPE)) == "container.changed"
            assert code_of(lambda: scan_scales(view)) == "container.changed"
            assert code_of(lambda: opened.digest("w")) == "container.changed"

    def test_replaced_by_rename_goes_on(self, tmp_path: Path) -> None:
        path = write(tmp_path / "m.q4nx", tiles_spec("w", K.Q4_1, weights()))
        with Container.open(path) as opened:
            before = opened.digest("w")
            write(path, tiles_spec("w", K.Q4_1, weights(seed=1)))
            assert opened.digest("w") == before

    def test_closed(self, tmp_path: Path) -> None:
        path = write(tmp_path / "m.q4nx", tiles_spec("w", K.Q4_1, weights()))
        opened = Container.open(path)
        view = opened.view("w", SHAPE, K.Q4_1)
        opened.close()
        opened.close()
        assert decode(view).shape == SHAPE
        with pytest.raises(ValueError, match="closed"):
            opened.raw("w")
        with pytest.raises(ValueError, match="closed"):
            view.read(0, 10)


class TestPaths:
    def test_missing_directory_and_pipe(self, tmp_path: Path) -> None:
        assert code_of(lambda: Container.open(tmp_path / "none")) == "container.missing"
        assert code_of(lambda: Container.open(tmp_path)) == "container.not_a_file"
        os.mkfifo(tmp_path / "pipe")
        assert code_of(lambda: Container.open(tmp_path / "pipe")) == "container.not_a_file"
        assert code_of(lambda: Container.open("a\0b")) == "container.unreadable"

    def test_a_socket(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("s")
            assert code_of(lambda: Container.open("s")) == "container.not_a_file"

    def test_spaces_and_letters(self, tmp_path: Path) -> None:
        directory = tmp_path / "mein Modell é"
        directory.mkdir()
        path = write(directory / "m.q4nx", tiles_spec("w", K.Q4_1, weights()))
        with Container.open(path) as opened:
            assert opened.path == str(path)

    def test_failed_opens_leak_no_descriptor(self, tmp_path: Path) -> None:
        path = tmp_path / "m.q4nx"
        path.write_bytes(b"short")
        gc.collect()  # what earlier tests left open
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(20):
            assert code_of(lambda: Container.open(path)) == "container.too_short"
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@settings(max_examples=100, deadline=None)
@given(
    shape=st.lists(st.integers(1, 700), min_size=1, max_size=3),
    kind=st.sampled_from(list(TensorKind)),
)
def test_any_claimed_shape_is_a_view_or_a_finding(
    shape: list[int], kind: TensorKind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "claims.q4nx"
    if not path.exists():
        write(path, tiles_spec("w", K.Q4_1, weights()), spec("n", "BF16", (576,), bytes(1152)))
    with Container.open(path) as opened:
        for name in ("w", "n"):
            try:
                view = opened.view(name, tuple(shape), kind)
            except InputError:
                continue
            assert decode(view).shape == tuple(shape)
