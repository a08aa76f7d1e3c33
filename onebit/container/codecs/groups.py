"""Cutting a matrix into groups of 32 columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit.container.kinds import GROUP_COLS


def grouped(weights: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return float32 [rows, groups, 32], zero padded, and which of the columns are real.

    The mask has shape [1, groups, 32].
    """
    rows, cols = weights.shape
    groups = -(-cols // GROUP_COLS)
    full = np.zeros((rows, groups * GROUP_COLS), np.float32)
    full[:, :cols] = weights
    real = np.arange(groups * GROUP_COLS) < cols
    shape = (groups, GROUP_COLS)
    return full.reshape(rows, *shape), real.reshape(1, *shape)
