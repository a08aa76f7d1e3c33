"""The device rule: `auto` explains, `npu` never falls back, `cpu` asks nothing of an NPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from route_support import KERNELS, NO_KERNELS, NO_NPU, NPU, Machine, config

from onebit.findings import Refusal, error
from onebit.routes import resolve
from onebit.routes.world import KernelSearch, NpuState

NO_DEVICE = NpuState(
    False,
    "XRT finds no NPU",
    (error("npu.no_device", "XRT finds no NPU", "load the amdxdna driver"),),
)
INCOMPLETE = KernelSearch(
    NO_KERNELS.searched,
    findings=(
        error(
            "npu.kernel_missing",
            "/k lacks full_i8_D_K512_N256.elf",
            "put the file there",
        ),
    ),
)
BUSY = NpuState(True, "NPU Strix", busy="process 42")

CASES = {
    "no pyxrt": (NO_NPU, NO_KERNELS, "npu.no_pyxrt", "no NPU: pyxrt is not there"),
    "no device": (NO_DEVICE, NO_KERNELS, "npu.no_device", "no NPU: XRT finds no NPU"),
    "no kernels": (
        NPU,
        NO_KERNELS,
        "npu.no_kernels",
        "NPU Strix has no kernels for this model: no kernel set was found",
    ),
    "incomplete set": (
        NPU,
        INCOMPLETE,
        "npu.kernel_missing",
        "NPU Strix has no kernels for this model: /k lacks full_i8_D_K512_N256.elf",
    ),
    "busy": (BUSY, KERNELS, None, "the NPU is in use by process 42"),
}


@pytest.mark.parametrize("case", CASES)
def test_npu_is_never_replaced(tiny: Path, machine: Machine, case: str) -> None:
    machine.npu, machine.kernels, code, _ = CASES[case]
    if code is None:  # a busy device is waited for
        resolution = resolve(config(tiny, device="npu"), machine.world())
        assert resolution.device.device == "npu"
        assert resolution.device.why.endswith("; waits for process 42")
        return
    with pytest.raises(Refusal) as caught:
        resolve(config(tiny, device="npu"), machine.world())
    assert [finding.code for finding in caught.value.findings] == [code]


@pytest.mark.parametrize("case", CASES)
def test_auto_serves_on_the_cpu_and_says_why(tiny: Path, machine: Machine, case: str) -> None:
    machine.npu, machine.kernels, _, why = CASES[case]
    resolution = resolve(config(tiny), machine.world())
    assert resolution.device.device == "cpu"
    assert resolution.device.why == why
    assert "\n" not in why


def test_auto_takes_a_usable_npu(tiny: Path, machine: Machine) -> None:
    machine.npu, machine.kernels = NPU, KERNELS
    device = resolve(config(tiny), machine.world()).device
    assert (device.asked, device.device, device.why) == ("auto", "npu", "NPU Strix is usable")
    assert (device.kernels.path, device.kernels.designs) == ("/k", 5)
    assert device.kernels.searched == KERNELS.searched


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_another_device_asks_nothing_of_the_npu(tiny: Path, machine: Machine, device: str) -> None:
    machine.npu, machine.kernels = NPU, KERNELS
    assert resolve(config(tiny, device=device), machine.world()).device.device == device
    assert machine.asked == []


def test_auto_looks_for_kernels_only_once_a_device_answers(tiny: Path, machine: Machine) -> None:
    resolve(config(tiny), machine.world())
    assert machine.asked == ["npu"]


def test_host_gemm_opens_no_device_but_checks_the_kernels(tiny: Path, machine: Machine) -> None:
    machine.kernels = KERNELS
    resolution = resolve(config(tiny, device="npu", npu__gemm="host"), machine.world())
    assert resolution.device.device == "npu"
    assert machine.asked == ["kernels"]
    machine.kernels = NO_KERNELS
    with pytest.raises(Refusal, match="no kernel set was found"):
        resolve(config(tiny, device="npu", npu__gemm="host"), machine.world())


def test_the_three_places_are_handed_to_the_search(tiny: Path, machine: Machine) -> None:
    machine.npu, machine.kernels = NPU, KERNELS
    machine.environ = {"ONEBIT_NPU_KERNELS": "/env/kernels"}
    resolve(config(tiny, kernels="/my/kernels"), machine.world())
    assert machine.searches == [(tiny, Path("/my/kernels"), "/env/kernels")]


def test_a_machine_without_native_kernels_says_that_it_is_slow(
    tiny: Path, machine: Machine
) -> None:
    machine.native = "no module named _native"
    for asked in ("auto", "cpu"):
        resolution = resolve(config(tiny, device=asked), machine.world())
        assert resolution.device.device == "reference"
        assert "NumPy is slow" in resolution.device.why
        (slow,) = [f for f in resolution.findings if f.code == "cpu.slow"]
        assert "no module named _native" in slow.what
        assert "compiler" in slow.mend


def test_auto_names_its_reason_when_it_refuses_a_setting(tiny: Path, machine: Machine) -> None:
    with pytest.raises(Refusal) as caught:
        resolve(config(tiny, npu__streams=2), machine.world())
    (finding,) = caught.value.findings
    assert "(device: auto took cpu: no NPU: pyxrt is not there)" in finding.what


def test_streams_are_in_the_resolution(tiny: Path, machine: Machine) -> None:
    machine.npu, machine.kernels = NPU, replace(KERNELS)
    assert resolve(config(tiny, npu__streams=2), machine.world()).streams == 2
