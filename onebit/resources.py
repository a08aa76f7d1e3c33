"""Finds the data folders that come with onebit, in a wheel and in a source tree alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_SOURCE_TREE = {"manifests": "manifests", "kernels": "kernels/npu"}


def resource_dir(name: str) -> Path:
    """Return the folder `manifests` or `kernels` (the packaged default kernel sets).

    A wheel carries them inside the package; a source tree keeps them beside it.
    """
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / _SOURCE_TREE[name]
