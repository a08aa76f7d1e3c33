"""Converts a Hugging Face directory (config.json, *.safetensors, tokenizer) into a container."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.container import Container, Entry, TensorKind
from onebit.container.codecs.tiles import Planes
from onebit.convert.directory import new_directory, write_json
from onebit.convert.gguf import (
    CONVERTER,
    Progress,
    Types,
    finish,
    make_encoders,
    missing_tensors,
    unmapped,
    wanted_tensors,
    write_tensors,
)
from onebit.convert.report import ConvertReport
from onebit.convert.source import Rows, SourceTensor, plain_values
from onebit.families import Family, family_for, load_families, scale_findings
from onebit.families.config_json import read_scope
from onebit.families.model import GgufTensor
from onebit.findings import InputError, Severity, Where, error
from onebit.manifest.json_file import read_json_object

_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_MEND = "give a Hugging Face model directory with config.json, tokenizer.json and *.safetensors"


class SafetensorsSource:
    """The safetensors files of a directory as one source."""

    def __init__(self, directory: Path) -> None:
        """Prove the header of every file.

        Raises:
            InputError: there is none, one is broken, or two hold the same tensor.
        """
        self.path = directory
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            what = "holds no *.safetensors file"
            raise InputError(error("convert.no_tensors", what, _MEND, Where(file=str(directory))))
        self._files = [Container.open(file) for file in files]
        self._where: dict[str, tuple[Container, Entry]] = {}
        for file in self._files:
            for name, entry in file.entries.items():
                if name in self._where:
                    what = "stands in two files"
                    where = Where(file=file.path, field=name)
                    raise InputError(error("convert.duplicate", what, _MEND, where))
                self._where[name] = (file, entry)
        self.tensors: Mapping[str, SourceTensor] = {
            name: SourceTensor(name, entry.dtype, entry.shape, TensorKind.Q4_1)
            for name, (_, entry) in self._where.items()
            if entry.dtype in ("F32", "F16", "BF16")
        }

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def planes(self, name: str, rows: Rows) -> Planes:  # noqa: ARG002 - the protocol has it
        """Never called: these files hold no codes."""
        raise ValueError(f"{name} has no codes")

    def values(self, name: str, rows: Rows) -> NDArray[np.float32]:
        """See `Source.values`."""
        file, entry = self._where[name]
        flat = plain_values(file.raw(name), entry.dtype)
        matrix = flat.reshape(entry.shape[0], -1)
        picked: NDArray[np.float32] = matrix[rows]
        return picked


def convert_safetensors(
    source: Path,
    target: Path,
    *,
    force: bool = False,
    types: Types = (),
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert a Hugging Face directory; matrices become q4_1 unless `types` says otherwise.

    Args:
        source: Directory with config.json and *.safetensors.
        target: The directory to make.
        force: Replace a directory that is not empty.
        types: (pattern of a container tensor name, kind).
        progress: Told how much is written.

    Raises:
        InputError: the source cannot be converted faithfully; nothing is written then.
    """
    config = read_json_object(source / "config.json", _MEND)
    read_json_object(source / "tokenizer.json", _MEND)
    family = _family(config, source)
    findings = scale_findings(family, config, str(source / "config.json"))
    scope, bad = read_scope(family, config, str(source / "config.json"))
    findings += bad
    if any(f.severity is Severity.ERROR for f in findings):
        raise InputError(findings)
    reader = SafetensorsSource(source)
    try:
        wanted, missing = wanted_tensors(family, scope, _rules(family), reader.tensors)
        if missing:
            raise InputError(missing_tensors(reader, family, missing))
        findings += unmapped(reader, {w.rule.name for w in wanted})
        encoders = make_encoders(family, scope, reader, wanted, types, findings)
        with new_directory(target, force=force) as folder:
            write_tensors(folder, encoders, _provenance(source), progress)
            for name in _COPIED:
                if (source / name).is_file():
                    shutil.copyfile(source / name, folder / name)
            write_json(folder / "config.json", config)
            finish(
                folder,
                family,
                config,
                _optional(source / "tokenizer_config.json"),
                _optional(source / "generation_config.json"),
            )
    finally:
        reader.close()
    return ConvertReport(
        directory=str(target),
        family=family.family,
        tensors=tuple(encoder.report() for encoder in encoders),
        findings=tuple(findings),
    )


def _family(config: Mapping[str, Any], source: Path) -> Family:
    model_type = config.get("model_type")
    family = family_for(model_type) if isinstance(model_type, str) else None
    if family is None:
        known = sorted(t for f in load_families().values() for t in f.match.model_type)
        what = f"is {model_type!r}; known: {', '.join(known)}"
        where = Where(file=str(source / "config.json"), field="model_type")
        raise InputError(error("config.unknown_family", what, "add a family manifest", where))
    return family


def _rules(family: Family) -> dict[str, GgufTensor]:
    """Return how each role is made: by its own name unless the family says otherwise."""
    specs = {**family.tensors, **family.layer_tensors}
    rules = {role: GgufTensor(name=spec.name[0]) for role, spec in specs.items()}
    return {**rules, **family.hf.tensors}


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path, f"mend or remove {path.name}") if path.is_file() else {}


def _provenance(source: Path) -> dict[str, str]:
    digest = hashlib.sha256()
    files = sorted(source.glob("*.safetensors"))
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return {
        "format": "q4nx",
        "source": source.name,
        "source_bytes": str(sum(file.stat().st_size for file in files)),
        "source_sha256": digest.hexdigest(),
        "converter": CONVERTER,
        "name": source.name,
    }
