"""Context and KV memory: what was asked for is honoured or refused with both numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from route_support import Machine, config

from onebit.findings import Refusal
from onebit.routes import kv, resolve

TOKEN = 2 * 2 * 2 * 64 * 4
"""KV bytes of a token of the tiny model: 2 layers, k and v, 2 heads of 64, float32."""


def memory(tiny: Path, machine: Machine, **settings):
    resolution = resolve(config(tiny, device="cpu", **settings), machine.world())
    assert resolution.memory is not None
    return resolution.memory, resolution.findings


def test_bytes_of_a_token(tiny: Path, machine: Machine) -> None:
    resolution = resolve(config(tiny), machine.world())
    assert resolution.plan is not None
    assert resolution.plan.kv_bytes_per_token == TOKEN
    resolution = resolve(config(tiny, device="cpu", engine__kv_dtype="bf16"), machine.world())
    assert resolution.plan is not None
    assert resolution.plan.kv_bytes_per_token == TOKEN // 2


def test_the_default_is_the_models_own_context(tiny: Path, machine: Machine) -> None:
    found, _ = memory(tiny, machine)
    assert found.context == 256
    assert found.bytes == found.pages * found.page_size * TOKEN <= kv.DEFAULT_BYTES


def test_a_smaller_context(tiny: Path, machine: Machine) -> None:
    assert memory(tiny, machine, ctx_size=100)[0].context == 100


def test_kv_memory_bounds_the_pages(tiny: Path, machine: Machine) -> None:
    found, _ = memory(tiny, machine, engine__kv_memory=64 * 32 * TOKEN)
    assert (found.pages, found.context, found.bytes) == (64, 256, 64 * 32 * TOKEN)


def test_an_unasked_context_is_cut_to_the_memory_and_said(tiny: Path, machine: Machine) -> None:
    found, findings = memory(tiny, machine, engine__kv_memory=2 * 32 * TOKEN)
    assert (found.pages, found.context) == (2, 64)
    (cut,) = [f for f in findings if f.code == "context.cut"]
    assert "64 tokens" in cut.what
    assert "256" in cut.what


def test_an_asked_context_that_does_not_fit_is_refused(tiny: Path, machine: Machine) -> None:
    with pytest.raises(Refusal) as caught:
        memory(tiny, machine, ctx_size=200, engine__kv_memory=2 * 32 * TOKEN)
    (finding,) = caught.value.findings
    assert finding.code == "context.too_large"
    assert f"needs {7 * 32 * TOKEN} bytes" in finding.what
    assert "enough for 64 tokens" in finding.what
    assert "raise engine.kv_memory" in finding.mend
    assert finding.where.field == "ctx_size (flag --ctx-size)"


def test_a_context_beyond_the_model_is_honoured_with_a_warning(
    tiny: Path, machine: Machine
) -> None:
    found, findings = memory(tiny, machine, ctx_size=1000)
    assert found.context == 1000
    (warning,) = [f for f in findings if f.code == "context.beyond_model"]
    assert "256" in warning.what


def test_half_of_the_free_memory_is_the_most(
    tiny: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "available_bytes", lambda: 8 * 32 * TOKEN)
    found, _ = memory(tiny, machine)
    assert (found.pages, found.context) == (4, 128)
    with pytest.raises(Refusal, match="half of the free memory"):
        memory(tiny, machine, ctx_size=256)


def test_free_memory_is_a_number_of_bytes() -> None:
    assert 1 << 20 < kv.available_bytes() < 1 << 50
