"""The process that a program on the NPU lives in: `python -m onebit.forward.worker`.

It is started by `onebit.forward.remote` with a socket and a memory file, opens the program as
told, runs steps until the socket ends, and dies with its parent whatever the binding is doing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onebit.container import Container
from onebit.devices.base import ProgramInfo, ProgramOptions
from onebit.devices.npu.gemm import GemmBackend, HostGemm
from onebit.devices.npu.kernels import load_choice
from onebit.devices.npu.launches import DeviceBroken, NpuGemm
from onebit.devices.npu.ops import NpuOps, pack_plan
from onebit.devices.npu.selftest import self_test
from onebit.devices.reference import ReferenceOps
from onebit.findings import DeviceError, Finding, OnebitError, error
from onebit.forward.channel import Link, Message, StepMemory
from onebit.forward.interpreter import Interpreter
from onebit.plan import Plan, bind

IDLE_SECONDS = 3.0
"""Without a step for this long the contexts are dropped; the device sleeps after 5 s."""
_PR_SET_PDEATHSIG = 1
_BUG = "see the server's log, and report it with that log"


class Worker:
    """Runs one program for the process at the other end of the link."""

    def __init__(self, link: Link, descriptor: int) -> None:
        self._link = link
        self._descriptor = descriptor
        self._backend: GemmBackend = HostGemm()
        self._program: Interpreter | None = None

    def serve(self) -> None:
        """Open the program and run steps until the other end closes or the device breaks."""
        setup = self._link.receive(60)
        if setup is None:
            return
        options = ProgramOptions(**setup["options"])
        plan = Plan.model_validate(setup["plan"])
        memory = StepMemory(self._descriptor, options, plan.vocab)
        try:
            detail = self._open(plan, options, setup, memory)
        except OnebitError as problem:
            self._link.send(_error(problem.findings))
            return
        self._link.send({"ready": detail})
        while self._one(memory):
            pass

    def _one(self, memory: StepMemory) -> bool:
        """Take one message; whether to go on."""
        message = self._link.receive(IDLE_SECONDS)
        if message is None:
            self._backend.idle()
            return True
        if "step" not in message or self._program is None:
            return False
        try:
            memory.answer(self._program.step(memory.read(message)))
        except DeviceError as problem:
            broken = isinstance(problem, DeviceBroken) or self.stuck
            self._link.send({**_error(problem.findings), "broken": broken})
            return not broken
        except Exception as problem:  # reported to the server, which starts a new process
            traceback.print_exc()
            what = f"the NPU's process failed: {type(problem).__name__}: {problem}"
            self._link.send({**_error((error("npu.worker", what, _BUG),)), "broken": True})
            return False
        self._link.send({"done": True})
        return True

    def _open(
        self, plan: Plan, options: ProgramOptions, setup: Message, memory: StepMemory
    ) -> dict[str, str]:
        npu = setup["npu"]
        kernels = Path(setup["kernels"]) if setup["kernels"] is not None else None
        weights = bind(plan, Container.open(setup["container"]))
        if npu["gemm"] == "device":
            if kernels is None:
                what = "the NPU needs a kernel set, and none was given"
                raise DeviceError(error("npu.no_kernels", what, "set `kernels`"))
            self._backend = NpuGemm(_import_pyxrt(), kernels, npu["streams"], npu["launch_timeout"])
        choice = load_choice(plan, kernels)
        ops = NpuOps(self._backend, ReferenceOps(options.context), memory.touch)
        pack_plan(ops, plan, weights, choice)
        detail: dict[str, str] = {}
        if npu["gemm"] == "device":
            launches = self_test(ops, self._backend, plan, weights, npu["streams"])
            detail["self_test"] = f"{launches} launches equal to the CPU's"
        info = ProgramInfo("npu", "int8-npu", options.threads, plan.vocab, options, detail)
        self._program = Interpreter(plan, weights, ops, info)
        return detail

    @property
    def stuck(self) -> bool:
        """Whether a run never ended, so that a clean exit would abort."""
        return isinstance(self._backend, NpuGemm) and self._backend.stuck

    def close(self) -> None:
        """Free program, contexts and buffers."""
        if self._program is not None:
            self._program.close()
            self._program = None
        self._backend.close()
        self._backend = HostGemm()


def _import_pyxrt() -> Any:
    try:
        return importlib.import_module("pyxrt")
    except ImportError as problem:
        what = f"pyxrt cannot be imported: {problem}"
        raise DeviceError(error("npu.pyxrt", what, "source XRT's setup.sh")) from problem


def _error(findings: tuple[Finding, ...]) -> Message:
    return {"error": [finding.model_dump(mode="json") for finding in findings]}


def setup_message(
    plan: Plan, container: Path, kernels: Path | None, options: ProgramOptions, npu: Message
) -> Message:
    """Return the first message, which says what to open."""
    return {
        "plan": plan.model_dump(mode="json"),
        "container": str(container),
        "kernels": str(kernels) if kernels is not None else None,
        "options": asdict(options),
        "npu": npu,
    }


def _die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, even inside the binding."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main(argv: list[str]) -> int:
    """Run the worker: descriptors of socket and memory, and the parent's process number."""
    end, memory, parent = (int(text) for text in argv)
    _die_with_parent(parent)
    # The server is told to end by these; it ends this process in turn, after the last step.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = Worker(Link(socket.socket(fileno=end)), memory)
    # The other end closes its socket as the sign to end.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        worker.serve()
    if worker.stuck:
        os._exit(1)
    worker.close()
    gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
