"""The real SmolLM2 on the fake NPU: its logits and greedy text, against the emulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.device.conftest import Open
from tests.device.design_files import write_kernels
from tests.device.emulation import emulated
from tests.device.machine import NpuMachine
from tests.fixtures.programs import greedy, plan_of, prefill

IDS = [504, 3575, 282, 4649, 314]
"""The capital of France is"""


@pytest.mark.timeout(600)
def test_smollm2_equals_its_emulation(
    smollm2: Path, tmp_path: Path, open_program: Open, machine: NpuMachine
) -> None:
    names = write_kernels(tmp_path / "k", plan_of(smollm2))
    assert names[0] == "full_i8_QKV_K640_N1024.elf"  # 576 wide, 960 columns
    program = open_program(smollm2, tmp_path / "k", streams=2)
    oracle = emulated(smollm2, program.info.options)
    expected = prefill(oracle, IDS)
    got = prefill(program, IDS)
    assert expected.std() > 1
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
    assert (got.argmax(axis=1) == expected.argmax(axis=1)).all()
    text = greedy(program, IDS, 12)
    assert text == greedy(oracle, IDS, 12)
    assert len(set(text)) > 4
    program.close()
    machine.assert_no_leak()
