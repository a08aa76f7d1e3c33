"""Drives the device: contexts, launches, waits, and what happens when one fails.

Runs in a process of its own, because the binding holds the GIL in every wait, aborts the process
when a run in flight is dropped, and may hang. Its rules here:

- a wait is a loop of `wait(1)` and a look at `state()`: an API time-out is not a device time-out;
- whatever a run uses is held until its state is final; a run that never ends is kept for ever;
- every output row is filled with a value that no product can have, and read back: an output that
  the device did not write is a failure, never an answer;
- contexts are made at first use, dropped before the device's idle suspend, and dropped on failure;
  a second failure in a row says that the process itself must go.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onebit.devices.npu.buffers import Buffer, Lane
from onebit.devices.npu.designs import Design
from onebit.devices.npu.gemm import Job, Stored
from onebit.devices.npu.packing import Codes, multiply_exact
from onebit.findings import DeviceError, error

SENTINEL: Final = np.int32(-(2**31))
"""|C| is at most K * 127^2, far from this for every K of a model."""
COMPLETED: Final = 4
FINAL: Final = frozenset({4, 5, 6, 8, 9, 10, 11})
"""ert_cmd_state of a command that will not change any more."""
SLEEPS_AFTER: Final = 4.0
"""Seconds without a launch after which contexts are made anew: the device sleeps after 5."""
_INTERRUPTED = "Interrupted system call"


class DeviceBroken(DeviceError):
    """The device failed again right after its contexts were rebuilt: start the process anew."""


class _Failed(Exception):
    """A launch failed; code and text of its finding."""

    def __init__(self, code: str, what: str) -> None:
        self.code, self.what = code, what
        super().__init__(what)


class NpuGemm:
    """`GemmBackend` on the NPU."""

    def __init__(self, xrt: Any, kernels: Path, streams: int, launch_timeout: float) -> None:
        """Open the device; no context is made yet.

        Args:
            xrt: The module pyxrt.
            kernels: Directory of the designs.
            streams: Launches in flight at once, each with contexts of its own.
            launch_timeout: Seconds after which a launch counts as hung.

        Raises:
            DeviceError: the device cannot be opened.
        """
        self._xrt, self._kernels = xrt, kernels
        self._streams, self._timeout = streams, launch_timeout
        try:
            self._device = xrt.device(0)
        except RuntimeError as problem:
            what = f"pyxrt.device(0) failed: {str(problem).strip()}"
            raise DeviceError(error("npu.open", what, "see `xrt-smi examine`")) from problem
        self._elves: dict[Design, Any] = {}
        self._lanes: dict[tuple[int, Design], Lane] = {}
        self._stuck: list[Lane] = []
        self._failures = 0
        self._last = 0.0
        """When the last launch ended."""

    @property
    def stuck(self) -> bool:
        """Whether a run never ended: this process must leave without clean-up."""
        return bool(self._stuck)

    # -- weights -----------------------------------------------------------------------------

    def store(self, design: Design, width: int, k: int) -> Stored:
        """Allocate a resident B buffer; see `GemmBackend`."""
        return Stored(design, width, k, Buffer(self._xrt, self._device, design.k * design.n))

    def fill(self, stored: Stored, column: int, codes: Codes) -> None:
        """Write columns of B; see `GemmBackend`."""
        n, k = codes.shape
        self._b(stored)[:k, column : column + n] = codes.T

    def finish(self, stored: Stored) -> None:
        """Make B visible to the device."""
        stored.place.push()

    def _b(self, stored: Stored) -> NDArray[np.int8]:
        buffer: Buffer = stored.place
        return buffer.view(np.int8, stored.design.k, stored.design.n)

    # -- launches ----------------------------------------------------------------------------

    def multiply(self, jobs: Sequence[Job]) -> Iterator[NDArray[np.int32]]:
        """Launch jobs, up to `streams` at once; see `GemmBackend`.

        Raises:
            DeviceError: a launch failed; the contexts are dropped and made anew by the next one.
            DeviceBroken: the launch after that failed as well.
        """
        flying: deque[tuple[Lane, Job, float]] = deque()
        if time.monotonic() - self._last > SLEEPS_AFTER:
            self._drop_contexts()
        try:
            for number, job in enumerate(jobs):
                if len(flying) == self._streams:
                    yield self._land(*flying.popleft())
                flying.append(self._start(number % self._streams, job))
            while flying:
                yield self._land(*flying.popleft())
        except _Failed as failed:
            self._settle(flying)
            raise self._failure(failed) from failed.__cause__
        finally:
            self._settle(flying)

    def _start(self, stream: int, job: Job) -> tuple[Lane, Job, float]:
        lane = self._lane(stream, job.weights.design)
        rows, design = len(job.rows), lane.design
        lane.load(job.rows)
        lane.c_rows[:rows] = SENTINEL
        lane.c.push(4 * rows * design.n)
        try:
            lane.run.set_arg(1, job.weights.place.bo)
            lane.run.start()
        except RuntimeError as problem:
            text = str(problem).strip()
            raise _Failed("npu.submit", f"{design.name} could not be started: {text}") from problem
        return lane, job, time.monotonic() + self._timeout

    def _lane(self, stream: int, design: Design) -> Lane:
        lane = self._lanes.get((stream, design))
        if lane is None:
            lane = self._lanes[stream, design] = Lane(self._xrt, self._device, design)
        try:
            lane.open(self._xrt, self._device, self._elf(design))
        except (RuntimeError, TypeError) as problem:
            lane.shut()
            raise _context_failed(design, problem) from problem
        return lane

    def _elf(self, design: Design) -> Any:
        if design not in self._elves:
            self._elves[design] = self._xrt.elf(str(self._kernels / design.name))
        return self._elves[design]

    def _land(self, lane: Lane, job: Job, deadline: float) -> NDArray[np.int32]:
        """Wait for a launch and return its proven output rows."""
        name = lane.design.name
        try:
            state = self._wait(lane, deadline)
        except _Failed:
            self._abandon(lane)
            raise
        if state is None:
            self._abandon(lane)
            raise _Failed("npu.launch_timeout", f"{name} did not finish within {self._timeout:g} s")
        self._last = time.monotonic()
        if int(state) != COMPLETED:
            raise _Failed("npu.launch_failed", f"{name} failed: {state.name}")
        rows = len(job.rows)
        lane.c.pull(4 * rows * lane.design.n)
        c = lane.c_rows[:rows, : job.weights.width]
        self._prove(c, job, name)
        self._failures = 0
        return c

    def _prove(self, c: NDArray[np.int32], job: Job, name: str) -> None:
        if c.min(initial=0) == SENTINEL:
            what = f"{name} was reported complete, but did not write its whole output"
            raise _Failed("npu.output_untouched", what)
        for row in np.flatnonzero(~c.any(axis=1)):
            a = job.rows[row : row + 1]
            if not a.any():
                continue
            b = self._b(job.weights)[: job.weights.k, : job.weights.width]
            if multiply_exact(a, b.T).any():
                what = f"{name} was reported complete, but its output is all zeros"
                raise _Failed("npu.output_zero", what)

    def _wait(self, lane: Lane, deadline: float) -> Any:
        """Return the final state of a lane's run, or None at the deadline."""
        while True:
            try:
                lane.run.wait(1)
            except RuntimeError as problem:
                # A signal ended the driver's wait; the command itself goes on.
                if _INTERRUPTED not in str(problem):
                    raise _Failed("npu.wait", f"wait failed: {str(problem).strip()}") from problem
            state = lane.run.state()
            if int(state) in FINAL:
                return state
            if time.monotonic() >= deadline:
                return None
            time.sleep(0)

    # -- failure and rest --------------------------------------------------------------------

    def _failure(self, failed: _Failed) -> DeviceError:
        self._failures += 1
        self._drop_contexts()
        mend = "send the request again; see `dmesg | grep amdxdna` if it happens again"
        kind = DeviceError if self._failures == 1 else DeviceBroken
        return kind(error(failed.code, failed.what, mend))

    def _settle(self, flying: deque[tuple[Lane, Job, float]]) -> None:
        """Wait for launches whose output nobody wants any more."""
        while flying:
            lane, _, deadline = flying.popleft()
            try:
                ended = self._wait(lane, deadline) is not None
            except _Failed:
                ended = False
            if not ended:
                self._abandon(lane)

    def _abandon(self, lane: Lane) -> None:
        """Keep a lane whose run never ended out of reach for ever: dropping it would abort."""
        self._stuck.append(lane)
        self._lanes = {key: kept for key, kept in self._lanes.items() if kept is not lane}

    def _drop_contexts(self) -> None:
        for lane in self._lanes.values():
            lane.shut()

    def idle(self) -> None:
        """Drop the contexts: one that sleeps through the device's suspend fails its next launch."""
        self._drop_contexts()

    def close(self) -> None:
        """Free everything that is not stuck."""
        self._drop_contexts()
        self._lanes.clear()
        self._elves.clear()


def _context_failed(design: Design, problem: Exception) -> _Failed:
    text = str(problem).strip().partition("\n")[0]
    if isinstance(problem, TypeError):
        return _Failed("npu.xrt", "XRT is too old: it has no hw_context(device, elf)")
    hint = ""
    if "-22" in text:
        hint = " (the device has no context left: another process may hold it)"
    return _Failed("npu.context", f"hw_context(device, {design.name}) failed: {text}{hint}")
