"""Soft capping."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def softcap(x: NDArray[np.float32], cap: float) -> NDArray[np.float32]:
    """Return cap * tanh(x / cap), float32 of x's shape."""
    capped: NDArray[np.float32] = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped
