"""Walks `ServeConfig`'s own fields: one `Leaf` for each setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from onebit.config.honoured import Honoured
from onebit.config.serve import ServeConfig

ENV_PREFIX = "ONEBIT_"
AMBIENT = {
    "ONEBIT_NPU_KERNELS": "first place where NPU kernels are looked for",
    "ONEBIT_CACHE_DIR": "where converted GGUF files and the demo model are kept",
    "ONEBIT_ISA": "instruction set that the CPU kernels are held to, for tests",
    "ONEBIT_DEVICE_ROOT": "where /sys, /dev and the lock of the NPU are looked for, for tests",
}
"""Variables that are no settings: facts of the machine rather than wishes for one server."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: its path in the config, its field, and its ledger entry if it has one."""

    keys: tuple[str, ...]
    field: FieldInfo
    honoured: Honoured | None

    @property
    def name(self) -> str:
        """Dotted name: `npu.streams`."""
        return ".".join(self.keys)

    @property
    def env(self) -> str:
        """Environment variable: `ONEBIT_NPU__STREAMS`."""
        return ENV_PREFIX + "__".join(self.keys).upper()

    @property
    def flag(self) -> str:
        """Command line flag: `--npu-streams`."""
        if self.honoured is not None and self.honoured.flag:
            return self.honoured.flag
        return "--" + "-".join(self.keys).replace("_", "-")

    @property
    def default(self) -> Any:
        """The value when nobody sets it."""
        return self.field.get_default(call_default_factory=True)

    @property
    def is_path(self) -> bool:
        """Whether the value names a file or directory."""
        return _holds(self.field.annotation, Path)

    @property
    def is_mapping(self) -> bool:
        """Whether the value is KEY: VALUE pairs of the user's own."""
        return get_origin(self.field.annotation) is dict

    @property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return get_origin(self.field.annotation) is tuple

    @property
    def is_flag(self) -> bool:
        """Whether the value is yes or no."""
        return self.field.annotation is bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that the value may be, where it is one of a closed set."""
        return tuple(dict.fromkeys(_words(self.field.annotation)))

    def value(self, config: ServeConfig) -> Any:
        """Return this setting's value in `config`."""
        value: Any = config
        for key in self.keys:
            value = getattr(value, key)
        return value


def _holds(annotation: Any, wanted: type) -> bool:
    return annotation is wanted or any(_holds(part, wanted) for part in get_args(annotation))


def _words(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (str(word) for word in get_args(annotation))
        return
    for part in get_args(annotation):
        yield from _words(part)


def _walk(model: type[BaseModel], prefix: tuple[str, ...]) -> Iterator[Leaf]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, (*prefix, name))
            continue
        entries = [item for item in field.metadata if isinstance(item, Honoured)]
        yield Leaf((*prefix, name), field, entries[0] if entries else None)


@cache
def leaves() -> tuple[Leaf, ...]:
    """Return every setting, in the order of the model."""
    return tuple(_walk(ServeConfig, ()))


def leaf_of(name: str) -> Leaf:
    """Return the setting with this dotted name.

    Raises:
        KeyError: there is none.
    """
    for leaf in leaves():
        if leaf.name == name:
            return leaf
    raise KeyError(name)
