"""Builds the C++ tests under sanitizers and runs them: `make sanitize`.

ASan and UBSan run all tests; TSan runs those that use threads.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HOST = Path(__file__).resolve().parent
BUILD = HOST.parent.parent / "build"
RUNS = {"address,undefined": ".*", "thread": "test_thread_pool|test_program"}
"""Sanitizers of one build -> the tests to run with them."""


def main() -> int:
    """Return 0 when every test of every build passes."""
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None:
        print("cmake is not installed: install it, or `pip install cmake ninja`", file=sys.stderr)
        return 2
    for sanitizers, tests in RUNS.items():
        build = BUILD / f"sanitize-{sanitizers.replace(',', '-')}"
        configure = [
            cmake, "-S", HOST, "-B", build, "-DONEBIT_MODULE=OFF", "-DONEBIT_TESTS=ON",
            f"-DONEBIT_SANITIZE={sanitizers}",
        ]  # fmt: skip
        for command in (
            configure,
            [cmake, "--build", build, "--parallel", "2"],
            [Path(cmake).with_name("ctest"), "--test-dir", build, "-R", tests,
             "--output-on-failure"],
        ):  # fmt: skip
            status = subprocess.run([str(part) for part in command], check=False).returncode  # noqa: S603 - our own build
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
