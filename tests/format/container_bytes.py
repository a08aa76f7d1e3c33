"""Small containers as bytes, and a slow decoder written straight from the format's tables."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.container import TensorKind, TensorSpec, TensorView, write_container
from onebit.container.codecs import plain, q4, q4_k, q8

TILED = [kind for kind in TensorKind if kind.is_tiled]
PLAIN = [TensorKind.BF16, TensorKind.F16, TensorKind.F32]


def container(tree: Any, data: bytes = b"") -> bytes:
    """Return a file with this header; `tree` is JSON text, bytes or a value to be dumped."""
    text = tree if isinstance(tree, bytes | str) else json.dumps(tree)
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw + data


def tensor(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def packed(kind: TensorKind, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the tile bytes of weights quantised to `kind`."""
    match kind:
        case TensorKind.Q4_1 | TensorKind.Q4_1_X64:
            return q4.pack(kind, q4.quantize(weights))
        case TensorKind.Q4_0:
            return q4.pack(kind, q4.quantize_q4_0(weights))
        case TensorKind.Q4NX:
            planes = q4.quantize(weights)
            with np.errstate(all="ignore"):
                z = np.where(planes.d > 0, -planes.m / planes.d, 0).astype(np.float32)
            return q4.pack(kind, type(planes)(planes.d, planes.codes, z=z))
        case TensorKind.Q4_K:
            return q4_k.pack(q4_k.quantize(weights))
        case TensorKind.Q8_A | TensorKind.Q8_B | TensorKind.Q8_IN_Q4:
            return q8.pack(kind, q8.quantize(weights))
        case _:
            return plain.pack(kind, weights)


def at_odd_address(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the same bytes at an odd address."""
    buffer = np.empty(data.size + 2, np.uint8)
    odd = 1 - buffer.ctypes.data % 2
    buffer[odd : odd + data.size] = data
    return buffer[odd : odd + data.size]


def view_of(kind: TensorKind, weights: NDArray[np.float32], name: str = "w") -> TensorView:
    """Return weights quantised to `kind` as a view at an odd address."""
    return TensorView(name, kind, weights.shape, at_odd_address(packed(kind, weights)))


def spec(name: str, dtype: str, shape: Sequence[int], data: NDArray[Any] | bytes) -> TensorSpec:
    raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
    return TensorSpec(name, dtype, tuple(shape), len(raw), lambda: [raw])


def tiles_spec(name: str, kind: TensorKind, weights: NDArray[np.float32]) -> TensorSpec:
    data = packed(kind, weights)
    return spec(name, "I8", (data.size // kind.tile_bytes, kind.tile_bytes), data)


def write(path: Path, *specs: TensorSpec, metadata: Mapping[str, str] | None = None) -> Path:
    write_container(path, specs, metadata or {})
    return path


def bf16_at(data: bytes, offset: int) -> np.float32:
    """Return the bfloat16 at a byte offset."""
    bits = int.from_bytes(data[offset : offset + 2], "little") << 16
    return np.frombuffer(struct.pack("<I", bits), "<f4")[0]


def _nibble(byte: int, row: int) -> int:
    return byte & 15 if row % 2 == 0 else byte >> 4


def _q4_value(zero: Callable[[np.float32, np.float32, int], np.float32]) -> Any:
    def value(tile: bytes, r: int, c: int) -> np.float32:
        meta = 2 * (c // 32 * 32 + r)
        code = _nibble(tile[1024 + r // 16 * 2048 + c * 8 + r % 16 // 2], r)
        return zero(bf16_at(tile, meta), bf16_at(tile, 512 + meta), code)

    return value


def _q4_1_x64(tile: bytes, r: int, c: int) -> np.float32:
    meta = 2 * (c // 32 * 32 + r)
    code = _nibble(tile[256 + r // 16 * 512 + c * 8 + r % 16 // 2], r)
    return bf16_at(tile, meta) * np.float32(code) + bf16_at(tile, 128 + meta)


def _q4_k(tile: bytes, r: int, c: int) -> np.float32:
    i = c // 32 * 32 + r
    code = _nibble(tile[512 + c * 16 + r // 2], r)
    d = bf16_at(tile, 4608 + 2 * r) * np.float32(tile[i])
    m = bf16_at(tile, 4672 + 2 * r) * np.float32(tile[256 + i])
    return d * np.float32(code) + m


def _q8(offset: Callable[[int, int], int]) -> Any:
    def value(tile: bytes, r: int, c: int) -> np.float32:
        code = np.frombuffer(tile[offset(r, c) : offset(r, c) + 1], np.int8)[0]
        return bf16_at(tile, 2 * (c // 32 * 32 + r)) * np.float32(code)

    return value


NAIVE: dict[TensorKind, Callable[[bytes, int, int], np.float32]] = {
    TensorKind.Q4_1: _q4_value(lambda d, m, q: d * np.float32(q) + m),
    TensorKind.Q4_0: _q4_value(lambda d, m, q: d * np.float32(q - 16 if q > 7 else q)),
    TensorKind.Q4NX: _q4_value(lambda d, z, q: d * (np.float32(q) - z)),
    TensorKind.Q4_1_X64: _q4_1_x64,
    TensorKind.Q4_K: _q4_k,
    TensorKind.Q8_A: _q8(lambda r, c: 512 + c * 32 + r),
    TensorKind.Q8_B: _q8(lambda r, c: 512 + r // 16 * 4096 + c * 16 + r % 16),
    TensorKind.Q8_IN_Q4: _q8(lambda r, c: 512 + r // 16 * 2048 + c * 16 + r % 16),
}


def naive_decode(view: TensorView) -> NDArray[np.float32]:
    """Decode one value at a time, by the byte map of each kind."""
    data, kind = view.data.tobytes(), view.kind
    across = -(-view.cols // kind.tile_cols)
    out = np.empty((view.rows, view.cols), np.float32)
    for row in range(view.rows):
        for col in range(view.cols):
            tile = row // 32 * across + col // kind.tile_cols
            raw = data[tile * kind.tile_bytes : (tile + 1) * kind.tile_bytes]
            out[row, col] = NAIVE[kind](raw, row % 32, col % kind.tile_cols)
    return out
