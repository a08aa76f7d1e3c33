"""What the path given as `model` is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onebit.findings import Refusal, Where, error

CONTAINER = "model.q4nx"
GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model: a directory that may hold a container, or a GGUF file."""

    kind: Literal["directory", "gguf"]
    path: Path

    @property
    def name(self) -> str:
        """The name it is served under without an alias."""
        full = Path(os.path.abspath(self.path))  # noqa: PTH100 - keeps symbolic links' names
        return full.stem if self.kind == "gguf" else full.name or "model"


def find_model(path: Path) -> ModelPath:
    """Tell what `path` is: a directory, a model.q4nx inside one, or a GGUF file.

    Raises:
        Refusal: there is nothing there, it cannot be read, or it is something else.
    """
    where = Where(file=str(path))
    try:
        if path.is_dir():
            return ModelPath("directory", path)
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        raise Refusal(
            error("model.not_found", "there is no such file or directory", "check the path", where)
        ) from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise Refusal(
            error("model.unreadable", f"cannot be read: {reason}", "check its permissions", where)
        ) from None
    if magic == GGUF_MAGIC:
        return ModelPath("gguf", path)
    if path.name == CONTAINER:
        return ModelPath("directory", path.parent)
    if path.suffix.lower() == ".gguf":
        what = "is named .gguf but does not begin with GGUF: it is damaged or not downloaded whole"
        raise Refusal(error("model.not_gguf", what, "download it again", where))
    raise Refusal(
        error(
            "model.unknown",
            "is neither a model directory, nor a model.q4nx, nor a GGUF file",
            "give the directory that holds model.q4nx, or a .gguf file",
            where,
        )
    )
