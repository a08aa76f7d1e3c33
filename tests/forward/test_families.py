"""Every family, on every host device, against transformers' own implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onebit.devices.cpu import native_status
from tests.fixtures.programs import greedy, prefill, program_on
from tests.fixtures.tiny_container import TINY_CONFIGS, write_tiny

GOLDEN = Path(__file__).parent.parent / "golden" / "families.npz"
PROMPT = 64
TOLERANCE = {"f32": 1e-4, "i16": 2e-3}
"""Logits reach 5 here; f32 differs by the order of sums, i16 by 16-bit activations."""


def prompt_ids(vocab: int) -> list[int]:
    """Return the prompt of the stored values: see make_family_logits.py."""
    return np.random.default_rng(7).integers(4, vocab, PROMPT).tolist()


@pytest.fixture(scope="module", params=sorted(TINY_CONFIGS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp(request.param)
    config = write_tiny(directory, request.param)
    return request.param, directory, config


@pytest.mark.parametrize(
    ("device", "numerics"), [("reference", "f32"), ("cpu", "f32"), ("cpu", "i16")]
)
def test_logits_and_greedy_text_equal_transformers(tiny, device: str, numerics: str) -> None:
    family, directory, config = tiny
    if device == "cpu" and native_status():
        pytest.skip(f"no native kernels: {native_status()}")
    stored = np.load(GOLDEN)
    expected, text = stored[f"{family}.logits"], stored[f"{family}.greedy"]
    ids = prompt_ids(config["vocab_size"])
    with program_on(directory, device, numerics, context=128) as program:
        logits = prefill(program, ids, chunk=24)
        made = greedy(program, ids, len(text))
    assert logits.shape == expected.shape
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE[numerics])
    assert made == text.tolist()


def test_the_comparison_fails_on_wrong_values(tiny) -> None:
    family, _, _ = tiny
    expected = np.load(GOLDEN)[f"{family}.logits"]
    assert expected.shape == (PROMPT, 320)
    assert np.abs(expected).max() > 1
    for wrong in (np.roll(expected, 1, axis=0), np.roll(expected, 1, axis=1), expected * 1.01):
        assert np.abs(wrong - expected).max() > TOLERANCE["i16"] * 5
