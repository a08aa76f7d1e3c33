"""Opens a program on the NPU: checks, the device lock, then the worker process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from onebit.config.npu import NpuConfig
from onebit.devices.base import ProgramInfo, ProgramOptions
from onebit.devices.cpu_threads import default_threads
from onebit.devices.npu.kernels import load_choice
from onebit.devices.npu.lock import ROOT, lock_file, take_lock
from onebit.devices.npu.ops import device_bytes
from onebit.devices.npu.process import Memlock
from onebit.findings import DeviceError, UsageError, error
from onebit.forward.channel import Message
from onebit.forward.npu_program import NpuProgram, Patience
from onebit.forward.worker import setup_message
from onebit.plan import Plan

log = logging.getLogger("onebit.npu")

NUMERICS = ("auto", "int8-npu")


def open_npu(
    plan: Plan,
    container: Path,
    kernels: Path | None,
    options: ProgramOptions,
    npu: NpuConfig,
    *,
    device_root: Path = ROOT,
    patience: Patience | None = None,
    memlock: Memlock | None = None,
) -> NpuProgram:
    """Open a program with the NPU's arithmetic, on the device or (`npu.gemm: host`) without one.

    Args:
        plan: The model's plan.
        container: Its container.
        kernels: Directory of the designs; needed unless the GEMMs run on the host.
        options: Sizes; `threads` are those of the ops that stay on the host.
        npu: Settings of the device.
        device_root: Where the device lock lies; see `probe_npu`.
        patience: How long to wait for the worker.
        memlock: How much memory may be locked; None asks the kernel.

    Raises:
        UsageError: an option that this device does not have.
        DeviceError: the device is locked by another process for too long, cannot be used, or
            fails its self-test.
    """
    resolved = _resolved(options)
    on_device = npu.gemm == "device"
    lock = None
    if on_device:
        _check_memory(plan, kernels, npu.streams, memlock or Memlock.of_this_process())
        lock = take_lock(npu.lock_timeout, _say_waiting(npu.lock_timeout), lock_file(device_root))
        if npu.streams > 1:
            log.info("npu: %d streams share one device lock", npu.streams)
    detail = {"gemm": npu.gemm, "streams": str(npu.streams)}
    if kernels is not None:
        detail["kernels"] = str(kernels)
    info = ProgramInfo("npu", "int8-npu", resolved.threads, plan.vocab, resolved, detail)
    settings: Message = {
        "gemm": npu.gemm,
        "streams": npu.streams,
        "launch_timeout": npu.launch_timeout,
    }
    setup = setup_message(plan, container, kernels, resolved, settings)
    program = NpuProgram(info, setup, lock, npu.launch_timeout, patience or Patience())
    program.start()
    return program


def _resolved(options: ProgramOptions) -> ProgramOptions:
    if options.numerics not in NUMERICS:
        what = f"the npu device has no numerics {options.numerics!r}"
        raise UsageError(error("npu.numerics", what, f"set `numerics` to {' or '.join(NUMERICS)}"))
    return replace(options, numerics="int8-npu", threads=options.threads or default_threads())


def _check_memory(plan: Plan, kernels: Path | None, streams: int, memlock: Memlock) -> None:
    """Refuse before a weight is read what the locked-memory limit will not hold."""
    if kernels is None:
        what = "the NPU needs a kernel set, and none was given"
        raise DeviceError(error("npu.no_kernels", what, "set `kernels`, or `device: cpu`"))
    short = memlock.finding(device_bytes(plan, load_choice(plan, kernels), streams))
    if short is not None:
        raise DeviceError(short)


def _say_waiting(timeout: float) -> Callable[[str], None]:
    def say(who: str) -> None:
        limit = f"for at most {timeout:g} s" if timeout else "until it is free"
        log.warning("npu: the device is held by %s; waiting %s", who, limit)

    return say
