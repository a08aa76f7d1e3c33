"""Tensors without tiles: bf16, f16, f32 as they are, and int8 tables with float32 scales."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32, f16_to_f32, f32_to_bf16
from onebit.container.codecs.groups import grouped
from onebit.container.kinds import GROUP_COLS, TensorKind
from onebit.container.view import TensorView

_LEAST_SCALE = np.float32(1e-8)


def stored_matrix(view: TensorView) -> NDArray[np.uint16] | NDArray[np.float32] | NDArray[np.int8]:
    """Return the stored elements [rows, cols]: bits for bf16 and f16, else values; zero copy."""
    dtype = {TensorKind.F32: "<f4", TensorKind.INT8: "i1"}.get(view.kind, "<u2")
    matrix: NDArray[np.uint16] = view.data.view(dtype).reshape(view.rows, view.cols)
    return matrix


def values(
    kind: TensorKind,
    stored: NDArray[np.uint16] | NDArray[np.float32] | NDArray[np.int8],
    scale: NDArray[np.float32] | None,
) -> NDArray[np.float32]:
    """Return float32 values of stored rows [rows, cols].

    bf16, f16 and f32 are exact. int8: w = q * scale[row, col // 32], rounded once.
    """
    match kind:
        case TensorKind.BF16:
            return bf16_to_f32(stored.view(np.uint16))
        case TensorKind.F16:
            return f16_to_f32(stored.view(np.uint16))
        case _ if scale is not None:
            spread = np.repeat(scale, GROUP_COLS, axis=1)[:, : stored.shape[1]]
            with np.errstate(all="ignore"):
                return stored.astype(np.float32) * spread
        case _:
            return stored.astype(np.float32)


def pack(kind: TensorKind, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the bytes of float32 values stored as BF16 (nearest), F16 (nearest) or F32."""
    match kind:
        case TensorKind.BF16:
            stored = f32_to_bf16(weights).astype("<u2", copy=False)
        case TensorKind.F16:
            with np.errstate(over="ignore"):
                stored = weights.astype("<f2")
        case TensorKind.F32:
            stored = weights.astype("<f4", copy=False)
        case _:
            raise ValueError(f"{kind} is not a plain float kind")
    return np.ascontiguousarray(stored).view(np.uint8).reshape(-1)


def quantize_int8(
    weights: NDArray[np.float32],
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise finite float32 [rows, cols] to an int8 table.

    scale = max(amax / 127, 1e-8) per 32 columns, q = clip(rint(w / scale), +-127).

    Returns:
        Codes int8 [rows, cols] and scales float32 [rows, ceil(cols / 32)].
    """
    groups, _ = grouped(weights)
    scale = np.maximum(np.abs(groups).max(axis=2) / np.float32(127), _LEAST_SCALE)
    codes = np.clip(np.rint(groups / scale[:, :, None]), -127, 127).astype(np.int8)
    return codes.reshape(len(weights), -1)[:, : weights.shape[1]], scale
