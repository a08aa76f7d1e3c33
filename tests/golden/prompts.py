"""The prompts and token ids whose values are stored for real models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea, there lived",
    "The three primary colours are red,",
    "1, 2, 3, 4, 5, 6,",
)
SAMPLED = 128


def sampled_ids(vocab: int) -> NDArray[np.int64]:
    """Return the ids whose logits are stored at every position."""
    return np.sort(np.random.default_rng(11).choice(vocab, SAMPLED, replace=False))
