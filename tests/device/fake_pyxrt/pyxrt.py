"""A stand-in for XRT's Python binding, for tests: put this folder on PYTHONPATH.

Held to what the real binding was observed to do: names, argument checks, exception classes and
texts, and the ways it ends or blocks a process. Device and host memory are apart, so a missing
`sync` shows. What machine it plays is read from the JSON file that FAKE_PYXRT names, again at each
launch; what it did is appended to the file's `log`, one JSON object a line.

    {"log": path, "devices": 1, "lock": path of a file that stands for the hardware,
     "faults": {"12": "timeout"}, "lost": false, ...}

A fault's key is the number of the launch, from 0, counted over all processes that share the log.
"""

# ruff: noqa: N801 - the binding's own names

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import mmap
import os
import signal
import struct
import sys
import time
import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np

_libc = ctypes.CDLL(None)
_libc_holding_gil = ctypes.PyDLL(None)


# -- the machine that is played ---------------------------------------------------------------


def _machine():
    name = os.environ.get("FAKE_PYXRT")
    machine = {"devices": 1, "faults": {}, "max_contexts": 16}
    if name:
        machine.update(json.loads(Path(name).read_text()))
    return machine


_SETUP = _machine()
if _SETUP.get("import_error"):
    raise ImportError(_SETUP["import_error"])


def _log(what, **facts):
    if path := _SETUP.get("log"):
        with Path(path).open("a") as file:
            file.write(json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\n")


def _next_launch():
    path = _SETUP.get("log")
    if not path or not Path(path).exists():
        return 0
    with Path(path).open() as file:
        return sum('"what": "launch"' in line for line in file)


_launches = _next_launch()
_alive = weakref.WeakSet()
_contexts = weakref.WeakSet()
_hardware = None


def _crash(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGABRT)


def _segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


def _take_hardware():
    """Only one process may have contexts."""
    global _hardware
    if _hardware is None and (path := _SETUP.get("lock")):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise _ioctl("CREATE_HWCTX", 22) from None
        _hardware = descriptor


def _release_hardware():
    global _hardware
    if _hardware is not None and not _contexts:
        os.close(_hardware)
        _hardware = None


def _ioctl(name, number):
    text = os.strerror(number)
    return RuntimeError(f"DRM_IOCTL_AMDXDNA_{name} IOCTL failed (err=-{number}): {text}")


# -- enums: neither IntEnum nor ordered --------------------------------------------------------


class _Enum:
    _names: ClassVar[dict] = {}
    _equals_int = False

    def __init__(self, value):
        self.value = value

    @property
    def name(self):
        return type(self)._names.get(self.value, "???")

    def __int__(self):
        return self.value

    def __index__(self):
        return self.value

    def __eq__(self, other):
        if isinstance(other, int) and self._equals_int:
            return self.value == other
        return type(other) is type(self) and other.value == self.value

    def __hash__(self):
        return hash(self.value)

    def __repr__(self):
        return f"<{type(self).__name__}.{self.name}: {self.value}>"


def _members(kind, **values):
    kind._names = {value: name for name, value in values.items()}
    for name, value in values.items():
        setattr(kind, name, kind(value))
    return kind


class xclBOSyncDirection(_Enum):
    _equals_int = True


class ert_cmd_state(_Enum):
    _equals_int = True


class xrt_info_device(_Enum):
    pass


_members(xclBOSyncDirection, XCL_BO_SYNC_BO_TO_DEVICE=0, XCL_BO_SYNC_BO_FROM_DEVICE=1)
_members(
    ert_cmd_state,
    ERT_CMD_STATE_NEW=1,
    ERT_CMD_STATE_QUEUED=2,
    ERT_CMD_STATE_COMPLETED=4,
    ERT_CMD_STATE_ERROR=5,
    ERT_CMD_STATE_ABORT=6,
    ERT_CMD_STATE_SUBMITTED=7,
    ERT_CMD_STATE_TIMEOUT=8,
    ERT_CMD_STATE_NORESPONSE=9,
    ERT_CMD_STATE_SKERROR=10,
    ERT_CMD_STATE_SKCRASHED=11,
)
_members(xrt_info_device, name=1, bdf=2, platform=3, host=4)

_ANSWERS = {
    "name": "RyzenAI-npu5",
    "bdf": "0000:c5:00.1",
    "platform": '{"platforms": [{"static_region": {"vbnv": "RyzenAI-npu5"}}]}',
    "host": '{"build": {"version": "2.26.0", "branch": "master"}}',
}


def _wrong(name, *args):
    shown = ", ".join(repr(arg)[:80] for arg in args)
    return TypeError(
        f"{name}(): incompatible function arguments. The following argument types are supported:\n"
        f"    1. ...\n\nInvoked with: {shown}"
    )


# -- device and elf ----------------------------------------------------------------------------


def enumerate_devices():
    return int(_SETUP["devices"])


class device:
    def __init__(self, *args):
        self._open = False
        if not args:
            return
        if len(args) != 1 or isinstance(args[0], float) or args[0] is None:
            raise _wrong("__init__", self, *args)
        index = args[0]
        if isinstance(index, str):
            if not index:
                raise ValueError("stoul")
            if not index.isdecimal():
                raise RuntimeError(f"No such device '{index}': Invalid argument")
            index = int(index)
        if not 0 <= int(index) < 2**32:
            raise _wrong("__init__", self, *args)
        if int(index) >= enumerate_devices():
            raise RuntimeError(f" No such device with index '{int(index)}'")
        if _SETUP.get("permission"):
            raise RuntimeError("Open /dev/accel/accel0 failed (err=-13): Permission denied")
        if _SETUP.get("memlock"):
            raise RuntimeError(
                "mmap(addr=0x0, len=67108864, prot=3, flags=8193, offset=4294967296) failed "
                "(err=-11): Resource temporarily unavailable"
            )
        if _machine().get("lost"):
            raise RuntimeError("Open /dev/accel/accel0 failed (err=-19): No such device")
        self._open = True
        _log("device")

    def get_info(self, key):
        if not self._open:
            _segfault()
        if not isinstance(key, xrt_info_device):
            raise _wrong("get_info", self, key)
        # The member called "name" hides the enum's own property, in the real binding too.
        return {**_ANSWERS, **_SETUP.get("info", {})}[xrt_info_device._names[key.value]]


class elf:
    def __init__(self, *args):
        if len(args) != 1 or not isinstance(args[0], str | bytes):
            raise _wrong("__init__", self, *args)
        name = os.fsdecode(args[0])
        try:
            self._data = Path(name).read_bytes()
        except OSError:
            self._data = b""
        if len(self._data) < 52 or self._data[:4] != b"\x7fELF" or not any(self._data[4:16]):
            raise RuntimeError(f"{name} is not found or is not a valid ELF file")
        if self._data[7] not in (69, 64, 70, 75, 86, 105):
            raise RuntimeError(f"ELF contains unsupported platform OS/ABI: {self._data[7]}")
        self._sections = _sections(self._data)


def _sections(data):
    """A file cut short loads: its sections vanish."""
    table, count, names = (
        struct.unpack_from("<I", data, 32)[0],
        *struct.unpack_from("<HH", data, 48),
    )
    rows = []
    for i in range(count):
        if table + 40 * (i + 1) > len(data):
            return {}
        rows.append(struct.unpack_from("<IIIIIIIIII", data, table + 40 * i))
    text = data[rows[names][4] : rows[names][4] + rows[names][5]] if names < len(rows) else b""
    return {
        text[r[0] : text.find(b"\0", r[0])].decode(): data[r[4] : r[4] + r[5]] for r in rows[1:]
    }


class hw_context:
    exclusive = 0
    shared = 1

    def __init__(self, *args):
        self._elf = None
        if not args:
            return
        if _SETUP.get("old_xrt"):
            raise _wrong("__init__", self, *args)
        if not isinstance(args[0], device) or len(args) not in (2, 4):
            raise _wrong("__init__", self, *args)
        if not isinstance(args[1], elf):
            raise _wrong("__init__", self, *args)
        if not args[0]._open:
            _segfault()
        if ".note.xrt.configuration" not in args[1]._sections:
            raise RuntimeError("ELF is missing xrt configuration info\n")
        machine = _machine()
        if machine.get("lost"):
            raise _ioctl("CREATE_HWCTX", 19)
        if machine.get("context_error"):
            raise _ioctl("CREATE_HWCTX", machine["context_error"])
        if len(_contexts) >= machine["max_contexts"]:
            raise _ioctl("CREATE_HWCTX", 22)
        _take_hardware()
        self._device, self._elf = args[0], args[1]
        self._hold = _Hold()
        _log("context")

    def get_device(self):
        if self._elf is None:
            _segfault()
        return self._device


class _Hold:
    """The driver's context: goes when context, kernels and runs are all gone."""

    def __init__(self):
        self.used = time.monotonic()
        _contexts.add(self)
        weakref.finalize(self, _gone).atexit = False


def _gone():
    _log("context_free")
    _release_hardware()


# -- buffers -----------------------------------------------------------------------------------


class bo:
    normal, cacheable, device_only, host_only = 0, 1 << 24, 1 << 28, 1 << 29

    def __init__(self, *args):
        raise RuntimeError("unsupported buffer type: none flag (err=95): Operation not supported")


class _Bo(bo):
    def __init__(self, place, size, *mode):
        if not isinstance(place, device | hw_context) or not isinstance(size, int):
            raise _wrong("__init__", self, place, size, *mode)
        if isinstance(place, device) and not place._open:
            _segfault()
        if size <= 0:
            raise RuntimeError("mmap_range: invalid size")
        limit = _machine().get("memory")
        if limit is not None and size + sum(b._size for b in _alive) > limit:
            raise _ioctl("CREATE_BO", 12)
        self._size = size
        self._length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        _libc.mmap.restype = ctypes.c_void_p
        self._address = _libc.mmap(
            None, ctypes.c_size_t(self._length), 3, 0x22, -1, ctypes.c_size_t(0)
        )
        # Neither the host's nor the device's side starts as zeros.
        ctypes.memset(self._address, 0xA5, self._length)
        self._device_side = np.full(size, 0x5A, np.uint8)
        _alive.add(self)
        weakref.finalize(self, _unmap, self._address, self._length).atexit = False
        _log("bo", size=size)

    def size(self):
        return self._size

    def map(self):
        make = ctypes.pythonapi.PyMemoryView_FromMemory
        make.restype = ctypes.py_object
        return make(ctypes.c_void_p(self._address), ctypes.c_ssize_t(self._length), 0x200)

    def sync(self, *args):
        if len(args) not in (1, 3) or not isinstance(args[0], xclBOSyncDirection):
            raise _wrong("sync", self, *args)
        size, offset = args[1:] if len(args) == 3 else (self._size, 0)
        if size + offset > self._size:
            raise RuntimeError(
                f"Invalid BO offset and size for sync'ing: {offset}, {size} (err=22): "
                "Invalid argument"
            )
        host = np.frombuffer(self.map(), np.uint8, size, offset)
        ours = self._device_side[offset : offset + size]
        if int(args[0]) == 0:
            ours[:] = host
        else:
            host[:] = ours


def _unmap(address, length):
    _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
    _log("bo_free")


# -- kernels and runs --------------------------------------------------------------------------


class kernel:
    def __init__(self, *args):
        raise RuntimeError("Invalid API called for xrt::kernel creation, use xrt::ext::kernel")

    def group_id(self, index):
        _segfault()


class _Kernel(kernel):
    def __init__(self, ctx, name):
        if not isinstance(ctx, hw_context) or not isinstance(name, str):
            raise _wrong("__init__", self, ctx, name)
        if ctx._elf is None:
            _segfault()
        base, _, instance = name.partition(":")
        if base != "main":
            raise RuntimeError("no ELF found with given kernel name in ctx")
        if instance not in ("", "seq"):
            raise RuntimeError(f"Unable to find group idx for given kernel: {name}")
        self._hold, self._elf = ctx._hold, ctx._elf


_running = set()


class run:
    def __init__(self, *args):
        self._kernel = None
        if not args:
            return
        if len(args) != 1 or not isinstance(args[0], kernel):
            raise _wrong("__init__", self, *args)
        self._kernel = args[0]
        self._args = {}
        self._state, self._started, self._flying, self._fault = 1, False, False, None

    def set_arg(self, index, value):
        if self._kernel is None:
            _segfault()
        if not isinstance(index, int) or not isinstance(value, int | bo):
            raise _wrong("set_arg", self, index, value)
        if not 0 <= index < 3:
            raise IndexError("vector::_M_range_check")
        if self._flying:
            raise RuntimeError("bad command state, can't change argument")
        # A run keeps no reference to its buffers.
        self._args[index] = weakref.ref(value) if isinstance(value, bo) else value

    def start(self):
        global _launches
        if self._kernel is None:
            _segfault()
        if self._flying:
            raise RuntimeError("bad command state, can't launch")
        if not len(self._kernel._elf._sections.get(".ctrltext.0", b"")):
            raise RuntimeError("Invalid instruction buffer size")
        machine, number = _machine(), _launches
        idle = time.monotonic() - self._kernel._hold.used
        self._fault = machine["faults"].get(str(number), machine.get("always"))
        if idle > machine.get("suspend", 1e9):
            self._fault = "timeout"
        if machine.get("lost"):
            raise _ioctl("EXEC_CMD", 19)
        _launches += 1
        _log("launch", number=number, fault=self._fault)
        if self._fault == "submit":
            raise _ioctl("EXEC_CMD", 22)
        if self._fault == "abort":
            _crash("[XRT] ERROR: scripted abort")
        self._state, self._started, self._flying = 1, True, True
        self._ends = time.monotonic() + machine.get("seconds", 0)
        _running.add(id(self))

    def state(self):
        if self._kernel is None:
            _segfault()
        self._advance()
        return ert_cmd_state(self._state)

    def wait(self, *timeout):
        if self._kernel is None:
            _segfault()
        if timeout and (
            len(timeout) > 1 or not isinstance(timeout[0], int) or not 0 <= timeout[0] < 2**32
        ):
            raise _wrong("wait", self, *timeout)
        if self._fault == "interrupted":
            self._fault = None
            raise _ioctl("WAIT_CMD", 4)
        if not self._started or self._fault == "deaf":
            self._hang()
        if not timeout or timeout[0] == 0:
            if self._flying and self._fault == "hang":
                self._hang()
            limit = 1e9
        else:
            limit = timeout[0] / 1000
        if self._flying:
            left = limit if self._fault == "hang" else max(self._ends - time.monotonic(), 0)
            _libc_holding_gil.usleep(int(min(limit, left) * 1e6) + 1)
            self._advance()
        return ert_cmd_state(8 if self._flying else self._state)

    def _hang(self):
        """Never return, and hold the GIL."""
        while True:
            _libc_holding_gil.sleep(1 << 20)

    def wait2(self):
        state = self.wait()
        if int(state) != 4:
            raise RuntimeError(f"Command failed to complete successfully ({state.name})")

    def _advance(self):
        if not self._flying or self._fault in ("hang", "deaf") or time.monotonic() < self._ends:
            return
        self._flying = False
        _running.discard(id(self))
        self._kernel._hold.used = time.monotonic()
        states = {"error": 5, "abort_state": 6, "timeout": 8, "noresponse": 9}
        self._state = states.get(self._fault, 4)
        if self._state == 4 and self._fault != "untouched":
            self._compute()

    def _compute(self):
        a, b, c = (self._args[i]() for i in range(3))
        if a is None or b is None or c is None:
            _segfault()
        m, k, n = struct.unpack("<III", self._kernel._elf._sections[".note.onebit.gemm"])
        out = c._device_side[: 4 * m * n].view(np.int32).reshape(m, n)
        if self._fault == "zeros":
            out[:] = 0
            return
        rows = a._device_side[: m * k].view(np.int8).reshape(m, k)
        weights = b._device_side[: k * n].view(np.int8).reshape(k, n)
        used = rows.any(axis=1)
        written = n // 2 if self._fault == "half" else n
        out[~used, :written] = 0
        out[used, :written] = _exact(rows[used], weights[:, :written])
        if self._fault == "wrong":
            out[0, 0] += 1

    def __del__(self):
        if getattr(self, "_kernel", None) is not None and self._flying:
            _crash("[XRT] ERROR: xrt::run destructed while command is still in progress")


def _exact(a, b):
    """int8 products in int32: float32 is exact up to 2^24, so the inputs are cut in pieces."""
    total = np.zeros((len(a), b.shape[1]), np.int64)
    for start in range(0, a.shape[1], 512):
        piece = slice(start, start + 512)
        total += (a[:, piece].astype(np.float32) @ b[piece].astype(np.float32)).astype(np.int64)
    return total.astype(np.int32)


def _at_exit():
    if _running:
        _crash("[XRT] ERROR: xrt::run destructed while command is still in progress")
    _log("exit", contexts=len(_contexts), bos=len(_alive))


atexit.register(_at_exit)


class ext:
    bo = _Bo
    kernel = _Kernel
