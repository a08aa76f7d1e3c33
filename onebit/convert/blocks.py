"""GGUF blocks as planes of codes and scales, or as float32 values.

Block layouts: GGML's `ggml-common.h` (Q4_0, Q4_1, Q8_0, Q4_K); all other types are decoded by the
`gguf` library.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from onebit.container.bits import f16_to_f32
from onebit.container.codecs.q4 import offset_from_signed
from onebit.container.codecs.tiles import Planes

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

T = GGMLQuantizationType
PLAIN = (T.F32, T.F16, T.BF16)


def _halves(qs: Bytes) -> Bytes:
    """Return the 32 codes of [..., 16] bytes: low nibbles first, then high nibbles."""
    return np.concatenate([qs & np.uint8(15), qs >> np.uint8(4)], axis=-1)


def _f16(raw: Bytes) -> Floats:
    """Return [...] float32 of [..., 2] bytes."""
    return f16_to_f32(np.ascontiguousarray(raw).view("<u2")[..., 0])


def _q4_0(raw: Bytes) -> Planes:
    blocks = raw.reshape(len(raw), -1, 18)
    d = _f16(blocks[..., :2])
    return Planes(d, _halves(blocks[..., 2:]).reshape(len(raw), -1), m=offset_from_signed(d))


def _q4_1(raw: Bytes) -> Planes:
    blocks = raw.reshape(len(raw), -1, 20)
    codes = _halves(blocks[..., 4:]).reshape(len(raw), -1)
    return Planes(_f16(blocks[..., :2]), codes, m=_f16(blocks[..., 2:4]))


def _q8_0(raw: Bytes) -> Planes:
    blocks = raw.reshape(len(raw), -1, 34)
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(len(raw), -1)
    return Planes(_f16(blocks[..., :2]), codes)


def _q4_k(raw: Bytes) -> Planes:
    blocks = raw.reshape(len(raw), -1, 144)
    d, least = _f16(blocks[..., :2]), _f16(blocks[..., 2:4])
    packed = blocks[..., 4:16]
    first, second, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (high & 15) | ((first >> 6) << 4)], axis=-1)
    zeros = np.concatenate([second & 63, (high >> 4) | ((second >> 6) << 4)], axis=-1)
    codes = _halves(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    rows = len(raw)
    with np.errstate(all="ignore"):
        return Planes(
            (d[..., None] * scales.astype(np.float32)).reshape(rows, -1),
            codes.reshape(rows, -1),
            m=(-least[..., None] * zeros.astype(np.float32)).reshape(rows, -1),
        )


PLANES: dict[GGMLQuantizationType, Callable[[Bytes], Planes]] = {
    T.Q4_0: _q4_0,
    T.Q4_1: _q4_1,
    T.Q8_0: _q8_0,
    T.Q4_K: _q4_k,
}
"""Types whose codes a container can keep. Scales are float32, not yet rounded to bfloat16."""


def values(raw: Bytes, kind: GGMLQuantizationType) -> Floats:
    """Return the float32 values of rows of blocks, [rows, cols].

    Args:
        raw: uint8 [rows, bytes per row].
        kind: Their type.

    Raises:
        NotImplementedError: the type has no decoder.
    """
    if kind is T.F32:
        return raw.view("<f4")
    if kind is T.F16:
        return f16_to_f32(raw.view("<u2"))
    planes = PLANES.get(kind)
    if planes is not None:
        return planes(raw).values()
    with np.errstate(all="ignore"):
        decoded: Floats = dequantize(raw, kind).astype(np.float32, copy=False)
    return decoded


def can_decode(kind: GGMLQuantizationType) -> bool:
    """Return whether `values` can decode a type."""
    if kind in PLAIN or kind in PLANES:
        return True
    try:
        block, size = GGML_QUANT_SIZES[kind]
        return bool(dequantize(np.zeros((1, size), np.uint8), kind).shape == (1, block))
    except (NotImplementedError, ValueError, KeyError):
        return False
