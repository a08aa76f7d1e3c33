"""Writes a container as a Hugging Face directory of its dequantised weights."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onebit.container import Container, decode
from onebit.plan import bind
from tests.fixtures.programs import plan_of


def write_hf_directory(source: Path, target: Path) -> Path:
    """Write `source`'s weights in float32, with its config and tokenizer, and return `target`.

    For families whose names and conventions in a container are those of Hugging Face (llama,
    qwen2, qwen3).
    """
    target.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, target)
    container = Container.open(source / "model.q4nx")
    try:
        weights = bind(plan_of(source), container)
        views = [*weights.outer.values(), *(v for layer in weights.layers for v in layer.values())]
        tensors = {view.name: decode(view) for view in views}
        write_safetensors(target / "model.safetensors", tensors)
        config = json.loads((source / "config.json").read_text())
        # A container may hold the head of a tied model in a type of its own.
        config["tie_word_embeddings"] = "lm_head.weight" not in tensors
        (target / "config.json").write_text(json.dumps(config))
    finally:
        container.close()
    return target


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    """Write float32 tensors: eight bytes of header size, a JSON header, the data."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        assert tensor.dtype == np.float32
        span = [end, end + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": span}
        end += tensor.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            out.write(np.ascontiguousarray(tensor).tobytes())
