"""Finds the data folders that come with onebit, in a wheel and in a source tree alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_FOLDERS = {"manifests": "manifests", "kernels": "kernels/npu"}
"""Name -> folder in the source tree; a wheel has its last part in `onebit/_data`."""


def resource_dir(name: str) -> Path:
    """Return the folder `manifests` or `kernels` (the packaged default kernel sets).

    A wheel carries them inside the package; a source tree keeps them beside it.
    """
    folder = Path(_FOLDERS[name])
    packaged = _PACKAGE / "_data" / folder.name
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder
