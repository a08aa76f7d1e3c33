"""The NPU's arithmetic once more, written apart from onebit's: the forward's oracle.

Weights: one scale per output column, amax / 127; activations: one per row. Codes are rounded half
away from zero, as C's roundf does. Products are summed in int64.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from onebit.container import Container, decode
from onebit.devices.base import ProgramInfo, ProgramOptions
from onebit.devices.reference import ReferenceOps
from onebit.forward import Interpreter
from onebit.plan import bind
from tests.fixtures.programs import plan_of


def roundf(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)  # |x| + 0.5 is exact here
    return np.sign(wide) * np.floor(np.abs(wide) + 0.5)


def to_int8(x: np.ndarray, empty: float) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of each row of x; `empty` is the amax of a row of zeros."""
    amax = np.abs(x).max(axis=1)
    amax = np.where(amax < 1e-12, np.float32(empty), amax).astype(np.float32)
    codes = roundf(x * np.float32(127) / amax[:, None])
    return np.clip(codes, -127, 127).astype(np.int64), amax / np.float32(127)


class EmulatedOps(ReferenceOps):
    """Reference ops with int8 linears."""

    def __init__(self, context: int) -> None:
        super().__init__(context)
        self._weights: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def linear(self, op, tensors, x):
        a, row_scale = to_int8(x, 127.0)
        biases = op.biases or (None,) * len(op.weights)
        outputs = []
        for role, bias in zip(op.weights, biases, strict=True):
            view = tensors[role]
            if view.name not in self._weights:
                w, scale = to_int8(decode(view), 1.0)
                self._weights[view.name] = (w.astype(np.float64), scale)
            w, column_scale = self._weights[view.name]
            c = (a.astype(np.float64) @ w.T).astype(np.int64)  # exact: far below 2^53
            y = c.astype(np.float32) * row_scale[:, None] * column_scale[None, :]
            if bias is not None:
                y = y + decode(tensors[bias])
            outputs.append(y * np.float32(op.scale))
        return outputs


def emulated(directory: Path, options: ProgramOptions) -> Interpreter:
    """Open the emulation of a model directory."""
    plan = plan_of(directory)
    weights = bind(plan, Container.open(directory / "model.q4nx"))
    info = ProgramInfo("emulation", "int8", 1, plan.vocab, options, {})
    return Interpreter(plan, weights, EmulatedOps(options.context), info)
