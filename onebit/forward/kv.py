"""Paged KV cache in NumPy, for the interpreter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32, f32_to_bf16
from onebit.plan import Attention

Array = NDArray[np.float32]
Pages = NDArray[np.int32]


class LayerKv:
    """Keys and values of one layer: [pages, page_size, kv_heads, head_dim] each."""

    def __init__(self, op: Attention, pages: int, page_size: int, dtype: str) -> None:
        """Reserve the pages; untouched ones cost no memory.

        Args:
            op: The layer's attention op.
            pages: Number of pages.
            page_size: Positions in a page.
            dtype: `f32`, or `bf16` (rounded to nearest even when stored).
        """
        shape = (pages, page_size, op.kv_heads, op.head_dim)
        storage = np.uint16 if dtype == "bf16" else np.float32
        self._keys: NDArray[np.generic] = np.zeros(shape, storage)
        self._values: NDArray[np.generic] = np.zeros(shape, storage)
        self._page_size = page_size
        self._rounded = dtype == "bf16"

    def store(self, table: Pages, positions: Pages, k: Array, v: Array) -> None:
        """Write k, v [rows, kv_heads * head_dim] at the sequence's `positions`."""
        pages, slots = table[positions // self._page_size], positions % self._page_size
        shape = (len(positions), *self._keys.shape[2:])
        self._keys[pages, slots] = self._encode(k.reshape(shape))
        self._values[pages, slots] = self._encode(v.reshape(shape))

    def load(self, table: Pages, length: int) -> tuple[Array, Array]:
        """Return keys and values of positions 0 .. length - 1: [length, kv_heads, head_dim]."""
        pages = table[: -(-length // self._page_size)]
        return self._decode(self._keys[pages], length), self._decode(self._values[pages], length)

    def _encode(self, x: Array) -> NDArray[np.generic]:
        return f32_to_bf16(x) if self._rounded else x

    def _decode(self, pages: NDArray[np.generic], length: int) -> Array:
        flat = pages.reshape(-1, *pages.shape[2:])[:length]
        return bf16_to_f32(flat.view(np.uint16)) if self._rounded else flat.view(np.float32)
