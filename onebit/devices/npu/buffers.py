"""Device buffers, as NumPy sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.devices.npu.designs import ROWS, Design
from onebit.findings import DeviceError, error


class Buffer:
    """One device buffer, zeroed, with its mapping.

    The mapping does not keep the buffer alive and touching it afterwards is a crash: views are
    never handed out for longer than the buffer is held.
    """

    def __init__(self, xrt: Any, device: Any, size: int) -> None:
        """Allocate and zero `size` bytes.

        Raises:
            DeviceError: there is no memory for it.
        """
        self._to = xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        self._from = xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        try:
            # ext.bo: the driver refuses a plain bo without a memory group.
            self.bo = xrt.ext.bo(device, size)
        except RuntimeError as problem:
            raise DeviceError(
                error(
                    "npu.buffer",
                    f"ext.bo(device, {size}) failed: {str(problem).strip()}",
                    "serve a smaller model, free memory, or raise the limit of locked memory "
                    "(ulimit -l, LimitMEMLOCK)",
                )
            ) from problem
        self._bytes: NDArray[np.uint8] = np.frombuffer(self.bo.map(), np.uint8, count=size)
        self._bytes[:] = 0
        self.push()

    def view(self, dtype: type[np.generic], rows: int, columns: int) -> NDArray[Any]:
        """Return the buffer as [rows, columns]."""
        return self._bytes.view(dtype)[: rows * columns].reshape(rows, columns)

    def push(self, size: int | None = None) -> None:
        """Make the host's first `size` bytes visible to the device."""
        self._sync(self._to, size)

    def pull(self, size: int) -> None:
        """Make the device's first `size` bytes visible to the host."""
        self._sync(self._from, size)

    def _sync(self, direction: Any, size: int | None) -> None:
        if size is None:
            self.bo.sync(direction)
        else:
            self.bo.sync(direction, size, 0)


class Lane:
    """Where launches of one design on one stream run: input, output, context and run.

    Buffers belong to the device and outlive contexts, which come and go.
    """

    def __init__(self, xrt: Any, device: Any, design: Design) -> None:
        self.design = design
        self.a = Buffer(xrt, device, ROWS * design.k)
        self.c = Buffer(xrt, device, 4 * ROWS * design.n)
        self.a_rows = self.a.view(np.int8, ROWS, design.k)
        self.c_rows = self.c.view(np.int32, ROWS, design.n)
        self.loaded: NDArray[np.int8] | None = None
        """The activation rows that `a` holds."""
        self.run: Any = None
        self._kernel: Any = None
        self._context: Any = None

    def open(self, xrt: Any, device: Any, elf: Any) -> None:
        """Make context, kernel and run, unless they are there."""
        if self.run is not None:
            return
        self._context = xrt.hw_context(device, elf)
        self._kernel = xrt.ext.kernel(self._context, "main:seq")
        self.run = xrt.run(self._kernel)
        self.run.set_arg(0, self.a.bo)
        self.run.set_arg(2, self.c.bo)

    def shut(self) -> None:
        """Drop the context; nothing may be in flight."""
        # The driver frees a context only when its runs and kernels are gone too.
        self.run = None
        self._kernel = None
        self._context = None

    def load(self, rows: NDArray[np.int8]) -> None:
        """Put activation rows [m, k] into `a`; the rest of it is zero."""
        if rows is self.loaded:
            return
        m, k = rows.shape
        before = self.loaded.shape if self.loaded is not None else (0, 0)
        self.a_rows[:m, :k] = rows
        if before[0] > m:
            self.a_rows[m : before[0]] = 0
        if before[1] > k:
            self.a_rows[:m, k:] = 0
        self.loaded = rows
        self.a.push(max(m, before[0]) * self.design.k)
