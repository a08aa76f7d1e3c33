"""The reference device: every op in NumPy, the oracle of all others.

It also runs models where the native kernels could not be built; it is slow, and says so.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onebit.container import TensorView, decode, decode_rows, iter_blocks
from onebit.ops.attention import attention
from onebit.ops.glu import glu
from onebit.ops.rms_norm import rms_norm
from onebit.ops.rope import cos_sin, rope
from onebit.ops.softcap import softcap
from onebit.plan import Add, Attention, Embed, Glu, Linear, RmsNorm, Rope, RopeTable, Softcap

Array = NDArray[np.float32]
Tensors = dict[str, TensorView]

CACHE_BYTES = 4 << 30
"""Decoded weights kept as float32; what is beyond is decoded again at each use."""


class OpDevice(Protocol):
    """Runs one op at a time. Values are float32 [rows, width]; `tensors` are the layer's."""

    def embed(self, op: Embed, tensors: Tensors, tokens: NDArray[np.int32]) -> Array:
        """Return the rows of `tokens`."""
        ...

    def rms_norm(self, op: RmsNorm, tensors: Tensors, x: Array) -> Array:
        """Return the normed x."""
        ...

    def linear(self, op: Linear, tensors: Tensors, x: Array) -> list[Array]:
        """Return one output for each weight."""
        ...

    def rope(self, op: Rope, table: RopeTable, x: Array, positions: NDArray[np.int32]) -> Array:
        """Return x rotated by position."""
        ...

    def attention(self, op: Attention, q: Array, k: Array, v: Array, first: int) -> Array:
        """Return attention of consecutive rows of one sequence; k, v hold all its positions."""
        ...

    def glu(self, op: Glu, gate: Array, up: Array) -> Array:
        """Return act(gate) * up."""
        ...

    def add(self, op: Add, a: Array, b: Array) -> Array:
        """Return a + scale * b."""
        ...

    def softcap(self, op: Softcap, x: Array) -> Array:
        """Return the capped x."""
        ...


class ReferenceOps:
    """`OpDevice` in NumPy, float32 throughout."""

    def __init__(self, context: int, cache_bytes: int = CACHE_BYTES) -> None:
        """Make a device.

        Args:
            context: Context in use, tokens; longrope's choice of factors depends on it.
            cache_bytes: Most bytes of decoded weights to keep.
        """
        self._context = context
        self._room = cache_bytes
        self._decoded: dict[str, Array] = {}

    def embed(self, op: Embed, tensors: Tensors, tokens: NDArray[np.int32]) -> Array:
        """Return scale * weight[tokens]."""
        return decode_rows(tensors[op.weight], tokens) * np.float32(op.scale)

    def rms_norm(self, op: RmsNorm, tensors: Tensors, x: Array) -> Array:
        """Return the RMSNorm of x."""
        return rms_norm(x, self._values(tensors[op.weight]), op.eps, op.groups, op.offset)

    def linear(self, op: Linear, tensors: Tensors, x: Array) -> list[Array]:
        """Return scale * (x W^T + b) for each piece."""
        biases = op.biases or (None,) * len(op.weights)
        outputs = []
        for role, bias in zip(op.weights, biases, strict=True):
            y = self._matmul(x, tensors[role])
            if bias is not None:
                y += self._values(tensors[bias])
            outputs.append(y if op.scale == 1.0 else y * np.float32(op.scale))
        return outputs

    def rope(self, op: Rope, table: RopeTable, x: Array, positions: NDArray[np.int32]) -> Array:
        """Return x rotated."""
        cos, sin = cos_sin(table, positions, self._context)
        return rope(x, cos, sin, op.head_dim)

    def attention(self, op: Attention, q: Array, k: Array, v: Array, first: int) -> Array:
        """Return causal attention of rows first, first + 1, ..."""
        return attention(
            q,
            k,
            v,
            first,
            heads=op.heads,
            scale=op.scale,
            window=op.window,
            softcap=op.softcap,
        )

    def glu(self, op: Glu, gate: Array, up: Array) -> Array:
        """Return act(gate) * up."""
        return glu(gate, up, op.act)

    def add(self, op: Add, a: Array, b: Array) -> Array:
        """Return a + scale * b."""
        return a + b if op.scale == 1.0 else a + np.float32(op.scale) * b

    def softcap(self, op: Softcap, x: Array) -> Array:
        """Return the capped x."""
        return softcap(x, op.cap)

    def _values(self, view: TensorView) -> Array:
        """Return a tensor's values, kept while there is room."""
        values = self._decoded.get(view.name)
        if values is None:
            values = decode(view)
            if values.nbytes <= self._room:
                self._room -= values.nbytes
                self._decoded[view.name] = values
        return values

    def _matmul(self, x: Array, view: TensorView) -> Array:
        if view.name in self._decoded or view.rows * view.cols * 4 <= self._room:
            return x @ self._values(view).T
        blocks = [x @ values.T for _, values in iter_blocks(view)]
        return np.concatenate(blocks, axis=1)
