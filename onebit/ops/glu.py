"""Gated linear units: act(gate) * up."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_erf = np.frompyfunc(math.erf, 1, 1)


def silu(x: Array) -> Array:
    """Return x * sigmoid(x), without overflow for large negative x."""
    e = np.exp(-np.abs(x))
    gated: Array = x * np.where(x >= 0, 1 / (1 + e), e / (1 + e))
    return gated


def gelu_tanh(x: Array) -> Array:
    """Return GELU in its tanh form (Hendrycks and Gimpel, 2016)."""
    inner = np.float32(_SQRT_2_OVER_PI) * (x + np.float32(0.044715) * x * x * x)
    gated: Array = np.float32(0.5) * x * (1 + np.tanh(inner))
    return gated


def gelu(x: Array) -> Array:
    """Return GELU by the error function."""
    erf = np.asarray(_erf(x.astype(np.float64) / math.sqrt(2)), np.float32)
    gated: Array = np.float32(0.5) * x * (1 + erf)
    return gated


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu}


def glu(gate: Array, up: Array, act: str) -> Array:
    """Return act(gate) * up, element by element.

    Args:
        gate: [rows, width] float32.
        up: [rows, width] float32.
        act: A name of `ACTIVATIONS`.
    """
    return ACTIVATIONS[act](gate) * up
