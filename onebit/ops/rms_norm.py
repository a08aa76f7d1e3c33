"""RMSNorm."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def rms_norm(x: Array, weight: Array, eps: float, groups: int = 1, offset: float = 0.0) -> Array:
    """Return x / sqrt(mean(x^2) + eps) * (weight + offset), over each of `groups` equal parts.

    Args:
        x: [rows, groups * size] float32.
        weight: [size] float32, shared by all groups.
        eps: Added to the mean of squares.
        groups: Parts of a row that are normed on their own (heads of a per-head norm).
        offset: 1 where the file stores w - 1.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, eq. 4. The mean is
    taken in float64: the oracle's own error must not count against a kernel.
    """
    rows, width = x.shape
    parts = x.reshape(rows, groups, width // groups)
    mean = np.mean(parts.astype(np.float64) ** 2, axis=-1, keepdims=True)
    normed = parts * (1.0 / np.sqrt(mean + eps)).astype(np.float32)
    scaled: Array = normed * (weight + np.float32(offset))
    return scaled.reshape(rows, width)
