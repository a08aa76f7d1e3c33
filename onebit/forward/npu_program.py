"""A program on the NPU, in a process of its own, that outlives its crashes.

A supervisor thread starts the worker, waits for its end and starts it again, at once the first
time and with growing pauses after that. The KV cache lives in the worker: after a restart the
first step raises `KvLost`, and the engine computes its sequences anew.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from onebit.devices.base import DeviceHealth, ProgramInfo, StepBatch
from onebit.devices.npu.lock import DeviceLock
from onebit.findings import DeviceError, KvLost, error
from onebit.forward.channel import Message, StepMemory
from onebit.forward.process import WorkerFailed, WorkerGone, WorkerProcess

log = logging.getLogger("onebit.npu")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the server waits for its worker, in seconds."""

    stall: float = 60.0
    """Beyond a launch's own time-out, without a heartbeat."""
    close: float = 10.0
    """For a clean end."""
    pauses: tuple[float, ...] = (0, 1, 2, 4, 8, 15, 30, 60)
    """Before each restart in a row; the last one repeats."""
    step: float = 2.0
    """The longest pause that a step waits out instead of failing."""


class NpuProgram:
    """A `Program` whose steps run in a worker process."""

    info: ProgramInfo

    def __init__(
        self,
        info: ProgramInfo,
        setup: Message,
        lock: DeviceLock | None,
        launch_timeout: float,
        patience: Patience,
    ) -> None:
        self.info = info
        self._setup, self._lock, self._patience = setup, lock, patience
        self._stall = launch_timeout + patience.stall
        self._memory = StepMemory.create(info.options, info.vocab)
        self._changed = threading.Condition()
        self._state: Literal["starting", "ready", "degraded", "down", "closed"] = "starting"
        self._worker: WorkerProcess | None = None
        self._starting: WorkerProcess | None = None
        """The worker while it opens the program."""
        self._opening: DeviceError | None = None
        """Why the first start failed."""
        self._reason = ""
        self._restarts = 0
        self._failures = 0
        self._was_ready = False
        self._in_a_row = 0
        """Starts since the last step that succeeded."""
        self._retry_at = 0.0
        self._kv_lost = False
        self._supervisor = threading.Thread(target=self._supervise, name="onebit-npu", daemon=True)

    def start(self) -> None:
        """Start the worker and wait until it is ready.

        Raises:
            DeviceError: it failed to start.
        """
        self._supervisor.start()
        with self._changed:
            self._changed.wait_for(lambda: self._state != "starting")
        if self._opening is not None:
            self.close()
            raise self._opening

    @property
    def alive(self) -> bool:
        """Until it is closed: a worker that ended is started again."""
        return self._state != "closed"

    @property
    def health(self) -> DeviceHealth:
        """The worker's state now; from any thread."""
        with self._changed:
            return DeviceHealth(self._state, self._reason, self._restarts, self._failures)

    @property
    def worker_pid(self) -> int | None:
        """The worker's process number while it runs."""
        worker = self._worker
        return worker.pid if worker is not None else None

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        """Run one step in the worker; see `Program.step`.

        Raises:
            KvLost: the worker was restarted since the last step; nothing of this one ran.
            DeviceError: the step failed, or there is no worker now.
        """
        worker = self._ready_worker()
        try:
            worker.ask(self._memory.write(batch))
        except WorkerFailed as failed:
            self._note_failure(_reason(failed), worker if failed.broken else None)
            raise
        except WorkerGone as gone:
            self._note_failure(f"it {gone}", worker)
            what = f"the NPU's process failed in this step: {gone}"
            raise DeviceError(error("npu.worker_died", what, "send the request again")) from gone
        with self._changed:
            if self._state == "degraded":
                self._state = "ready"
            self._in_a_row = 0
        return self._memory.logits(batch.logits_for.size)

    def close(self) -> None:
        """End the worker and let the device lock go. Safe to call twice."""
        with self._changed:
            self._state = "closed"
            worker, self._worker = self._worker, None
            if self._starting is not None:
                self._starting.kill()
            self._changed.notify_all()
        if worker is not None:
            worker.close(self._patience.close)
        if self._supervisor is not threading.current_thread() and self._supervisor.is_alive():
            self._supervisor.join()
        self._memory.close()
        if self._lock is not None:
            self._lock.release()

    # -- steps -------------------------------------------------------------------------------

    def _ready_worker(self) -> WorkerProcess:
        with self._changed:
            self._changed.wait_for(lambda: not self._worth_waiting())
            if self._state == "closed":
                raise DeviceError(error("npu.closed", "the program is closed", "open it again"))
            if self._worker is None:
                seconds = max(self._retry_at - time.monotonic(), 0)
                what = f"the NPU's process is down ({self._reason}); next start in {seconds:.0f} s"
                raise DeviceError(error("npu.down", what, "send the request again later"))
            if self._kv_lost:
                self._kv_lost = False
                what = f"the NPU's process was started anew ({self._reason})"
                raise KvLost(error("npu.kv_lost", what, "sequences are computed anew"))
            return self._worker

    def _worth_waiting(self) -> bool:
        if self._state == "starting":
            return True
        pause = self._retry_at - time.monotonic()
        return self._state == "down" and pause < self._patience.step

    def _note_failure(self, reason: str, ended: WorkerProcess | None) -> None:
        with self._changed:
            self._failures += 1
            self._reason = reason
            if self._state == "ready":
                self._state = "degraded"
            if ended is not None and self._worker is ended:
                self._go_down(reason)
        if ended is not None:
            ended.close(self._patience.close)

    # -- supervision -------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Start the worker, and again whenever it ends."""
        while self._state != "closed":
            try:
                worker = self._spawn()
            except OSError as problem:
                self._start_failed(problem)
            else:
                self._open(worker)
            self._pause()

    def _spawn(self) -> WorkerProcess:
        inherited = () if self._lock is None else (self._lock.descriptor,)
        with self._changed:
            self._starting = WorkerProcess(
                self._memory, inherited, self.info.options.threads, self._stall
            )
            return self._starting

    def _open(self, worker: WorkerProcess) -> None:
        """Have a worker open the program, and let steps use it until it ends."""
        try:
            worker.ask(self._setup)
        except (WorkerFailed, WorkerGone) as problem:
            worker.close(self._patience.close)
            self._start_failed(problem)
        else:
            self._run(worker)
        finally:
            self._starting = None

    def _start_failed(self, problem: Exception) -> None:
        with self._changed:
            if self._state == "closed":
                return
            self._in_a_row += 1
            if self._was_ready:
                self._go_down(_reason(problem))
                return
            self._opening = _opening_error(problem)
            self._state = "closed"
            self._changed.notify_all()

    def _run(self, worker: WorkerProcess) -> None:
        """Let steps use a worker until it ends."""
        if self._offer(worker):
            how = worker.wait()
            with self._changed:
                if self._worker is worker:
                    self._go_down(f"it {how}")
        worker.close(self._patience.close)

    def _offer(self, worker: WorkerProcess) -> bool:
        with self._changed:
            self._starting = None
            if self._state == "closed":
                return False
            if self._was_ready:
                self._restarts += 1
                self._kv_lost = True
                log.warning("npu: the process runs again (restart %d)", self._restarts)
            self._was_ready = True
            self._in_a_row += 1
            self._worker, self._state = worker, "ready"
            self._changed.notify_all()
            return True

    def _go_down(self, reason: str) -> None:
        """Note that there is no worker; the lock is held."""
        self._worker, self._reason = None, reason
        if self._state == "closed":
            return
        pauses = self._patience.pauses
        pause = pauses[min(max(self._in_a_row - 1, 0), len(pauses) - 1)]
        self._state = "down"
        self._retry_at = time.monotonic() + pause
        log.error("npu: the process is down (%s); it starts again in %g s", reason, pause)
        self._changed.notify_all()

    def _pause(self) -> None:
        """Wait until it is time to start again, or the program is closed."""
        with self._changed:
            while self._state != "closed" and (left := self._retry_at - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._state != "closed":
                self._state = "starting"


def _reason(problem: Exception) -> str:
    if isinstance(problem, WorkerFailed):
        return "; ".join(finding.what for finding in problem.findings)
    return f"it did not start: {problem}"


def _opening_error(problem: Exception) -> DeviceError:
    if isinstance(problem, WorkerFailed):
        return DeviceError(problem.findings)
    what = f"the NPU's process did not start: {problem}"
    return DeviceError(error("npu.worker_died", what, "see its output in the log above"))
