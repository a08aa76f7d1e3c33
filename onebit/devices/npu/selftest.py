"""Proves the device before it is called ready.

For every design and stream: random activations against the first layer's resident weights. The
output, filled with a value that no product has, must be overwritten whole and equal to the host's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit.container import TensorView, iter_blocks
from onebit.devices.npu.designs import ROWS, Design, Part, linear_ops
from onebit.devices.npu.gemm import GemmBackend, Job
from onebit.devices.npu.ops import NpuOps, tensors_of
from onebit.devices.npu.packing import Codes, multiply_exact, quantise_columns
from onebit.findings import DeviceError, error
from onebit.plan import Plan, Weights


def self_test(ops: NpuOps, backend: GemmBackend, plan: Plan, weights: Weights, streams: int) -> int:
    """Run it and return the number of launches that were compared.

    Raises:
        DeviceError: a launch failed, or an output differs from the host's.
    """
    draw = np.random.default_rng(128)
    proven: set[Design] = set()
    launches = 0
    for layer, op in linear_ops(plan):
        tensors = tensors_of(weights, layer)
        views = [tensors[role] for role in op.weights]
        for part, stored in ops.packed(op, tensors).parts:
            if part.design in proven:
                continue
            proven.add(part.design)
            rows = draw.integers(-127, 128, (ROWS, op.k), np.int8)
            expected = multiply_exact(rows, _codes(views, part))
            for got in backend.multiply([Job(stored, rows)] * streams):
                launches += 1
                _compare(part.design, got, expected)
    return launches


def _codes(views: list[TensorView], part: Part) -> Codes:
    """Quantise the weights of one part anew, independent of what was stored."""
    found: list[Codes] = []
    first = 0
    for view in views:
        for start, values in iter_blocks(view):
            at = first + start
            rows = slice(max(part.begin - at, 0), max(part.end - at, 0))
            found.append(quantise_columns(values[rows])[0])
        first += view.rows
    return np.concatenate(found)


def _compare(design: Design, got: NDArray[np.int32], expected: NDArray[np.int32]) -> None:
    wrong = int((got != expected).sum())
    if wrong:
        what = (
            f"the self-test failed: {wrong} of {got.size} values of {design.name} differ from the "
            "same product on the CPU"
        )
        mend = "use the design file that was built for this NPU and XRT, or set `device: cpu`"
        raise DeviceError(error("npu.self_test", what, mend))
