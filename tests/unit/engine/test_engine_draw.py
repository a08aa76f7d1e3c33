"""The draw against plain definitions of softmax, top_k, top_p and min_p."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.engine.draw import Peaks, Workspace, draw, log_sum_exp, uniform

SIZES = [1, 2, 63, 512, 1000, 4097, 40_001]


def row_of(size: int, seed: int = 0, spread: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def plain_distribution(
    row: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> np.ndarray:
    """Probabilities of every token, by sorting and cutting in float64."""
    order = np.argsort(-row, kind="stable")
    scaled = (row[order].astype(np.float64) - float(row.max())) / temperature
    weights = np.exp(scaled)
    kept = np.ones(row.size, bool)
    if top_k:
        kept[top_k:] = False
    if top_p < 1:
        before = np.cumsum(np.where(kept, weights, 0)) - weights
        kept &= before < top_p * weights[kept].sum()
    kept &= weights >= min_p
    out = np.zeros(row.size)
    out[order] = np.where(kept, weights, 0)
    return out / out.sum()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 2, 5, 40, 300])
def test_best_is_the_stable_sort(size: int, k: int) -> None:
    row = row_of(size, seed=k)
    assert Peaks(row).best(k).tolist() == np.argsort(-row, kind="stable")[:k].tolist()


@pytest.mark.parametrize("size", SIZES)
def test_best_breaks_ties_by_id(size: int) -> None:
    row = np.round(row_of(size)).astype(np.float32)
    expected = np.argsort(-row, kind="stable")[:17].tolist()
    assert Peaks(row).best(17).tolist() == expected
    assert Peaks(np.zeros(size, np.float32)).best(3).tolist() == list(range(min(3, size)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bound", [-9.0, 0.0, 3.0, 99.0])
def test_above_is_the_plain_search(size: int, bound: float) -> None:
    row = row_of(size)
    row[-1] = 5.0
    found = Peaks(row).above(np.float32(bound))
    assert found.tolist() == np.flatnonzero(row >= bound).tolist()


def test_log_sum_exp() -> None:
    for size in SIZES:
        row = row_of(size, spread=8)
        expected = np.log(np.exp(row.astype(np.float64)).sum())
        assert log_sum_exp(Peaks(row), Workspace(size)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (1.0, 5, 1.0, 0.0),
        (1.0, 0, 0.8, 0.0),
        (1.3, 0, 0.35, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.8, 20, 0.9, 0.05),
        (1.0, 0, 0.95, 0.2),
        (3.0, 0, 0.999, 0.0),
    ],
)
@pytest.mark.parametrize("size", [7, 700, 3001])
def test_a_grid_of_numbers_gives_the_plain_distribution(
    temperature: float, top_k: int, top_p: float, min_p: float, size: int
) -> None:
    """Evenly spaced numbers hit each token as often as its probability says, to within one."""
    row = row_of(size, seed=3)
    expected = plain_distribution(row, temperature, top_k, top_p, min_p)
    grid = (np.arange(2000) + 0.5) / 2000
    workspace = Workspace(size)
    peaks = Peaks(row)
    drawn = [draw(peaks, temperature, top_k, top_p, min_p, float(x), workspace) for x in grid]
    counts = np.bincount(drawn, minlength=size)
    assert np.abs(counts - 2000 * expected).max() <= 1.01
    assert set(np.flatnonzero(counts)) <= set(np.flatnonzero(expected))


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 1500),
    seed=st.integers(0, 9),
    spread=st.sampled_from([0.0, 0.01, 1.0, 10.0, 1e4]),
    temperature=st.sampled_from([1e-30, 1e-3, 0.5, 1.0, 5.0, 1e9]),
    top_k=st.sampled_from([0, 1, 2, 50, 5000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.9, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.3, 1.0]),
    banned=st.floats(0, 0.99),
    number=st.sampled_from([0.0, 1e-12, 0.5, 0.999, 1 - 2**-53]),
)
def test_every_draw_is_an_allowed_token(
    size, seed, spread, temperature, top_k, top_p, min_p, banned, number
) -> None:
    row = row_of(size, seed, spread)
    hidden = np.random.default_rng(seed).random(size) < banned
    hidden[0] = False
    row[hidden] = -np.inf
    token = draw(Peaks(row), temperature, top_k, top_p, min_p, number, Workspace(size))
    assert row[token] > -np.inf
    if top_k:
        assert token in np.argsort(-row, kind="stable")[:top_k]
    if temperature <= 1e-30 or (top_p == 1e-9 and size < 1000) or min_p == 1.0:
        # As likely as the likeliest, to the precision of float32 weights.
        assert row.max() - row[token] <= 1e-6 * temperature


def test_uniform_depends_on_its_arguments_alone() -> None:
    assert uniform(42, 0, 7) == uniform(42, 0, 7)
    values = {uniform(s, c, p) for s in (-1, 0, 42, 2**64 + 5) for c in (0, 1) for p in range(50)}
    assert len(values) == 400
    many = np.array([uniform(1, 0, p) for p in range(20_000)])
    assert 0 <= many.min() < many.max() < 1
    counts = np.histogram(many, bins=20, range=(0, 1))[0]
    assert np.abs(counts - 1000).max() < 150
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.03
