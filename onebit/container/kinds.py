"""The ways a tensor's values are stored in a container. One name per decoding rule."""

from __future__ import annotations

from enum import StrEnum
from math import prod


class TensorKind(StrEnum):
    """How the bytes of one tensor become float32 values.

    Tile kinds cover 32 rows x 256 columns per tile unless they say otherwise; `d`, `m`, `z` are
    per (row, 32 columns).
    """

    BF16 = "bf16"
    F32 = "f32"
    F16 = "f16"
    INT8 = "int8"
    """Plain int8 table [rows, cols] with a `<name>.scale` float32 partner [rows, cols / 32]."""
    Q4_1 = "q4_1"
    """5120 B tiles, w = d * q + m, q in 0..15."""
    Q4_0 = "q4_0"
    """5120 B tiles, zero m plane, two's complement nibbles: w = d * q, q in -8..7."""
    Q4NX = "q4nx"
    """5120 B tiles of dtype "Q4NX": subtractive zero, w = d * (q - z)."""
    Q4_K = "q4_k"
    """4736 B tiles, two-level scales: w = S * s * q + M * z."""
    Q8_A = "q8_a"
    """8704 B tiles, "column" code layout: byte 512 + c * 32 + r; w = d * q."""
    Q8_B = "q8_b"
    """8704 B tiles, "16-lane" layout: byte 512 + (r // 16) * 4096 + c * 16 + r % 16; w = d * q."""
    Q4_1_X64 = "q4_1_x64"
    """1280 B tiles of 32 x 64, otherwise as q4_1 (one reading of Gemma3-1B's quarter tiles)."""
    Q8_IN_Q4 = "q8_in_q4"
    """5120 B tiles of 32 x 128 that hold int8 codes (an early Qwen3.5 packer): w = d * q."""

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile; 0 for kinds that have no tiles."""
        return _TILE_BYTES.get(self, 0)

    @property
    def tile_cols(self) -> int:
        """Columns of one tile; 0 for kinds that have no tiles."""
        return _TILE_COLS.get(self, TILE_COLS) if self.is_tiled else 0

    @property
    def is_tiled(self) -> bool:
        """Whether the tensor is stored as tiles."""
        return self in _TILE_BYTES


_TILE_BYTES = {
    TensorKind.Q4_1: 5120,
    TensorKind.Q4_0: 5120,
    TensorKind.Q4NX: 5120,
    TensorKind.Q4_K: 4736,
    TensorKind.Q8_A: 8704,
    TensorKind.Q8_B: 8704,
    TensorKind.Q4_1_X64: 1280,
    TensorKind.Q8_IN_Q4: 5120,
}

_ELEMENT_BYTES = {
    TensorKind.BF16: 2,
    TensorKind.F32: 4,
    TensorKind.F16: 2,
    TensorKind.INT8: 1,
}

TILE_ROWS = 32
TILE_COLS = 256
GROUP_COLS = 32
"""Columns that share one scale."""

_TILE_COLS = {TensorKind.Q4_1_X64: 64, TensorKind.Q8_IN_Q4: 128}


def rows_and_cols(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a logical shape as a matrix: leading axes are rows, a 1-D shape is one row."""
    if not shape:
        return 1, 1
    return prod(shape[:-1]), shape[-1]


def tile_grid(kind: TensorKind, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (row blocks, column blocks) of the tiles that hold `shape`, edges padded."""
    rows, cols = rows_and_cols(shape)
    return -(-rows // TILE_ROWS), -(-cols // kind.tile_cols)


def tensor_bytes(kind: TensorKind, shape: tuple[int, ...]) -> int:
    """Return the stored size in bytes of a tensor of logical `shape`, padding included."""
    if not kind.is_tiled:
        return prod(shape) * _ELEMENT_BYTES[kind]
    row_blocks, col_blocks = tile_grid(kind, shape)
    return row_blocks * col_blocks * kind.tile_bytes
