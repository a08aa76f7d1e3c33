"""Runs a plan op by op on an `OpDevice`: the forward, short enough to read aloud."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from onebit.devices.base import ProgramInfo, StepBatch
from onebit.devices.reference import OpDevice, Tensors
from onebit.forward.kv import LayerKv
from onebit.plan import (
    Add,
    Attention,
    Embed,
    Glu,
    Linear,
    Op,
    Plan,
    RmsNorm,
    Rope,
    Softcap,
    Weights,
)

Array = NDArray[np.float32]
Values = dict[str, Array]


class Interpreter:
    """A `Program`: prologue, layers, epilogue, one op after the other."""

    def __init__(self, plan: Plan, weights: Weights, device: OpDevice, info: ProgramInfo) -> None:
        """Bind a plan to weights and a device.

        Args:
            plan: The plan.
            weights: Its tensors.
            device: Runs the ops.
            info: What to report; its options lay out the KV cache.
        """
        self.info = info
        self._plan, self._weights, self._device = plan, weights, device
        options = info.options
        self._kv = [
            LayerKv(plan.attention(i), options.pages, options.page_size, options.kv_dtype)
            for i in range(len(plan.layers))
        ]

    @property
    def alive(self) -> bool:
        """Always: an op that fails leaves nothing broken behind."""
        return True

    def close(self) -> None:
        """Free the KV cache."""
        self._kv = []

    def step(self, batch: StepBatch) -> Array:
        """Run one step; see `Program.step`."""
        values: Values = {}
        for op in self._plan.prologue:
            self._outer(op, values, batch)
        for index, layer in enumerate(self._plan.layers):
            for op in self._plan.kinds[layer.kind]:
                self._inner(index, op, values, batch)
        wanted = {name: value[batch.logits_for] for name, value in values.items()}
        if len(batch.logits_for) == 0:
            return np.empty((0, self._plan.vocab), np.float32)
        for op in self._plan.epilogue:
            self._outer(op, wanted, batch)
        return wanted["logits"][:, : self._plan.vocab]

    def _outer(self, op: Op, values: Values, batch: StepBatch) -> None:
        if isinstance(op, Embed):
            values[op.out] = self._device.embed(op, self._weights.outer, batch.tokens)
        else:
            self._row_op(op, self._weights.outer, values)

    def _inner(self, index: int, op: Op, values: Values, batch: StepBatch) -> None:
        if isinstance(op, Rope):
            table = self._plan.ropes[op.table]
            for name in op.values:
                values[name] = self._device.rope(op, table, values[name], batch.positions)
        elif isinstance(op, Attention):
            values[op.out] = self._attend(index, op, values, batch)
        else:
            self._row_op(op, self._weights.layer(index), values)

    def _row_op(self, op: Op, tensors: Tensors, values: Values) -> None:
        match op:
            case RmsNorm():
                values[op.out] = self._device.rms_norm(op, tensors, values[op.input])
            case Linear():
                outputs = self._device.linear(op, tensors, values[op.input])
                values.update(zip(op.out, outputs, strict=True))
            case Add():
                values[op.out] = self._device.add(op, values[op.a], values[op.b])
            case Glu():
                values[op.out] = self._device.glu(op, values[op.gate], values[op.up])
            case Softcap():
                values[op.value] = self._device.softcap(op, values[op.value])
            case _:
                raise ValueError(f"{op.op} cannot stand here")

    def _attend(self, index: int, op: Attention, values: Values, batch: StepBatch) -> Array:
        q, k, v = values[op.q], values[op.k], values[op.v]
        out = np.empty_like(q)
        kv = self._kv[index]
        for rows in sequence_runs(batch.sequences):
            table = batch.page_tables[batch.sequences[rows.start]]
            positions = batch.positions[rows]
            kv.store(table, positions, k[rows], v[rows])
            keys, held = kv.load(table, int(positions[-1]) + 1)
            out[rows] = self._device.attention(op, q[rows], keys, held, int(positions[0]))
        return out


def sequence_runs(sequences: NDArray[np.int32]) -> list[slice]:
    """Return the row range of each sequence in a batch."""
    edges = np.flatnonzero(np.diff(sequences)) + 1
    bounds = [0, *edges.tolist(), len(sequences)]
    return [slice(a, b) for a, b in pairwise(bounds) if a < b]
