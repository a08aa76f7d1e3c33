"""The NPU's `OpDevice`: linear ops as int8 GEMMs, all other ops on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit.container import TensorView, decode, iter_blocks
from onebit.devices.npu.designs import ROWS, DesignChoice, Part, linear_ops, op_key
from onebit.devices.npu.gemm import GemmBackend, Job, Stored
from onebit.devices.npu.packing import dequantise, quantise_columns, quantise_rows
from onebit.devices.npu.process import HEAP_BYTES
from onebit.devices.reference import OpDevice, Tensors
from onebit.plan import (
    Add,
    Attention,
    Embed,
    Glu,
    Linear,
    Plan,
    RmsNorm,
    Rope,
    RopeTable,
    Softcap,
    Weights,
)

Array = NDArray[np.float32]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """A linear op's weights: one launch for each part, one scale for each output column."""

    parts: tuple[tuple[Part, Stored], ...]
    scales: Array
    biases: tuple[Array | None, ...]


class NpuOps:
    """`OpDevice` with the NPU's arithmetic; `host` runs what is no linear op."""

    def __init__(self, backend: GemmBackend, host: OpDevice, beat: Callable[[], None]) -> None:
        """Make a device without weights; see `pack`.

        Args:
            backend: Runs the GEMMs.
            host: Runs all other ops.
            beat: Called before every piece of work, for whoever watches that it goes on.
        """
        self._backend, self._host, self._beat = backend, host, beat
        self._packed: dict[Names, Packed] = {}

    def pack(self, op: Linear, tensors: Tensors, parts: tuple[Part, ...]) -> None:
        """Quantise a linear op's weights into resident buffers, once."""
        views = [tensors[role] for role in op.weights]
        names = tuple(view.name for view in views)
        if names in self._packed:
            return
        stored = [(p, self._backend.store(p.design, p.end - p.begin, op.k)) for p in parts]
        scales = np.empty(sum(op.n), np.float32)
        first = 0
        for view in views:
            for start, values in iter_blocks(view):
                self._beat()
                self._fill(first + start, values, stored, scales)
            first += view.rows
        for _, place in stored:
            self._backend.finish(place)
        biases = op.biases or (None,) * len(views)
        vectors = tuple(None if b is None else decode(tensors[b]) for b in biases)
        self._packed[names] = Packed(tuple(stored), scales, vectors)

    def _fill(
        self, first: int, values: Array, stored: list[tuple[Part, Stored]], scales: Array
    ) -> None:
        """Quantise output columns first, first + 1, ... and write them where they belong."""
        codes, scale = quantise_columns(values)
        last = first + len(values)
        scales[first:last] = scale
        for part, place in stored:
            begin, end = max(first, part.begin), min(last, part.end)
            if begin < end:
                self._backend.fill(place, begin - part.begin, codes[begin - first : end - first])

    def packed(self, op: Linear, tensors: Tensors) -> Packed:
        """Return what `pack` made of an op."""
        return self._packed[tuple(tensors[role].name for role in op.weights)]

    # -- ops ---------------------------------------------------------------------------------

    def linear(self, op: Linear, tensors: Tensors, x: Array) -> list[Array]:
        """Return scale * (x W^T + b) for each piece, in blocks of 128 rows.

        Raises:
            DeviceError: a launch failed.
        """
        packed = self.packed(op, tensors)
        y = np.empty((len(x), len(packed.scales)), np.float32)
        for start in range(0, len(x), ROWS):
            self._beat()
            block = slice(start, start + ROWS)
            codes, row_scale = quantise_rows(x[block])
            jobs = [Job(stored, codes) for _, stored in packed.parts]
            products = self._backend.multiply(jobs)
            for (part, _), c in zip(packed.parts, products, strict=True):
                columns = slice(part.begin, part.end)
                y[block, columns] = dequantise(c, row_scale, packed.scales[columns])
        outputs = np.split(y, np.cumsum(op.n)[:-1], axis=1)
        return [
            _finish(piece, bias, op.scale)
            for piece, bias in zip(outputs, packed.biases, strict=True)
        ]

    def embed(self, op: Embed, tensors: Tensors, tokens: NDArray[np.int32]) -> Array:
        """See `OpDevice`."""
        return self._host.embed(op, tensors, tokens)

    def rms_norm(self, op: RmsNorm, tensors: Tensors, x: Array) -> Array:
        """See `OpDevice`."""
        return self._host.rms_norm(op, tensors, x)

    def rope(self, op: Rope, table: RopeTable, x: Array, positions: NDArray[np.int32]) -> Array:
        """See `OpDevice`."""
        return self._host.rope(op, table, x, positions)

    def attention(self, op: Attention, q: Array, k: Array, v: Array, first: int) -> Array:
        """See `OpDevice`."""
        self._beat()
        return self._host.attention(op, q, k, v, first)

    def glu(self, op: Glu, gate: Array, up: Array) -> Array:
        """See `OpDevice`."""
        return self._host.glu(op, gate, up)

    def add(self, op: Add, a: Array, b: Array) -> Array:
        """See `OpDevice`."""
        return self._host.add(op, a, b)

    def softcap(self, op: Softcap, x: Array) -> Array:
        """See `OpDevice`."""
        return self._host.softcap(op, x)


def pack_plan(ops: NpuOps, plan: Plan, weights: Weights, choice: DesignChoice) -> None:
    """Pack every linear op of a plan."""
    for layer, op in linear_ops(plan):
        ops.pack(op, tensors_of(weights, layer), choice.parts[op_key(op)])


def tensors_of(weights: Weights, layer: int | None) -> dict[str, TensorView]:
    """Return the tensors of a layer, or those outside the layers."""
    return weights.outer if layer is None else weights.layer(layer)


def device_bytes(plan: Plan, choice: DesignChoice, streams: int) -> int:
    """Return the memory that a plan locks on the device: heap, weights, inputs and outputs."""
    shared: Mapping[Names, int] = {
        _tensor_names(plan, layer, op): sum(
            part.design.k * part.design.n for part in choice.parts[op_key(op)]
        )
        for layer, op in linear_ops(plan)
    }
    lanes = sum(ROWS * d.k + 4 * ROWS * d.n for d in choice.designs)
    return HEAP_BYTES + sum(shared.values()) + streams * lanes


def _tensor_names(plan: Plan, layer: int | None, op: Linear) -> Names:
    refs = plan.tensors if layer is None else plan.layers[layer].tensors
    return tuple(refs[role].name for role in op.weights)


def _finish(y: Array, bias: Array | None, scale: float) -> Array:
    if bias is not None:
        y = y + bias
    return y if scale == 1.0 else y * np.float32(scale)
