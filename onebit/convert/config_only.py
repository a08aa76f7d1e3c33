"""Writes what a directory lacks beside its model.q4nx, from the GGUF it was made of."""

from __future__ import annotations

from pathlib import Path

from onebit.convert.config_keys import scale_guards, write_config
from onebit.convert.directory import write_json
from onebit.convert.gguf import gguf_family
from onebit.convert.gguf_file import GgufFile
from onebit.convert.rope_scaling import rope_scaling
from onebit.convert.tokenizer import generation_config, gguf_tokenizer, tokenizer_config
from onebit.findings import InputError, Severity, Where, error


def write_config_only(source: Path, directory: Path, *, force: bool = False) -> list[str]:
    """Write config.json and the other JSON files that are missing; return their names.

    Files that are there stay, unless `force`. model.q4nx is not touched.

    Args:
        source: The GGUF.
        directory: A directory with a model.q4nx.
        force: Replace files that are there.

    Raises:
        InputError: no model.q4nx, or the GGUF cannot be served faithfully.
    """
    if not (directory / "model.q4nx").is_file():
        what = "holds no model.q4nx"
        mend = f"convert the whole model: onebit convert {source} DIR"
        raise InputError(error("convert.no_container", what, mend, Where(file=str(directory))))
    with GgufFile(source) as file:
        family = gguf_family(file)
        findings = scale_guards(file, family)
        if any(f.severity is Severity.ERROR for f in findings):
            raise InputError(findings)
        config = write_config(file, family)
        scaling, _ = rope_scaling(file, family, config)
        if scaling is not None:
            config["rope_scaling"] = scaling
        values = {
            "config.json": config,
            "tokenizer_config.json": tokenizer_config(file),
            "generation_config.json": generation_config(file),
        }
        written = [n for n in values if force or not (directory / n).exists()]
        if force or not (directory / "tokenizer.json").exists():
            temporary = directory / ".tokenizer.json.new"
            gguf_tokenizer(file).save(str(temporary))
            temporary.replace(directory / "tokenizer.json")
            written.append("tokenizer.json")
    for name in written:
        if name in values:
            temporary = directory / f".{name}.new"
            write_json(temporary, values[name])
            temporary.replace(directory / name)
    return written
