"""Makes a container of any family's shape with random weights: big models without a download.

    python -m tests.bench.random_container DIR --shape 1.5b --kind q4_1 [--gguf FILE]

Weights are normal with deviation 1 / sqrt(in_features), quantised as a converter would. A few
hundred tiles of each shape are made and drawn from at random, which keeps a 1.5B model to
seconds. `--gguf` also writes a GGUF of the same shape and types (its own random blocks), for
measuring another engine on the same work.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from onebit.container import TensorKind, TensorSpec, tensor_bytes, tile_grid, write_container
from onebit.container.codecs import plain, q4, q4_k, q8
from onebit.families import family_for
from onebit.families.config_json import Scope, read_scope
from onebit.families.model import Family
from onebit.families.model import TensorSpec as FamilyTensor

SHAPES: dict[str, dict[str, Any]] = {
    "135m": {
        "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
        "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    },
    "0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
        "vocab_size": 151936, "max_position_embeddings": 32768, "rope_theta": 1000000,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    },
    "1.5b": {
        "model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960,
        "vocab_size": 151936, "max_position_embeddings": 32768, "rope_theta": 1000000,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Shapes by name: the config.json of a model of that size."""

POOL = 16
"""Tile rows and tile columns of the pool that tiles are drawn from: POOL * POOL tiles."""

_PACK: dict[TensorKind, Callable[[NDArray[np.float32]], NDArray[np.uint8]]] = {
    TensorKind.Q4_1: lambda w: q4.pack(TensorKind.Q4_1, q4.quantize(w)),
    TensorKind.Q4_0: lambda w: q4.pack(TensorKind.Q4_0, q4.quantize_q4_0(w)),
    TensorKind.Q4_K: lambda w: q4_k.pack(q4_k.quantize(w)),
    TensorKind.Q8_A: lambda w: q8.pack(TensorKind.Q8_A, q8.quantize(w)),
    TensorKind.Q8_B: lambda w: q8.pack(TensorKind.Q8_B, q8.quantize(w)),
}


@dataclass(frozen=True)
class Matrix:
    """A tensor to make: its name in the container and its logical shape."""

    name: str
    shape: tuple[int, ...]


def matrices(config: dict[str, Any]) -> list[Matrix]:
    """Return all tensors that `config`'s family declares; a tied head is left out."""
    family = family_for(config["model_type"])
    assert family is not None, config["model_type"]
    scope, findings = read_scope(family, config, "config.json")
    assert not findings, findings
    outer = [
        _matrix(spec, scope, None)
        for spec in family.tensors.values()
        if _is_there(spec, scope) and not _is_tied(spec, scope, family)
    ]
    layers = [
        _matrix(spec, scope, n)
        for n in range(int(scope.numbers["layers"]))
        for spec in family.layer_tensors.values()
        if _is_there(spec, scope)
    ]
    return outer + layers


def _is_there(spec: FamilyTensor, scope: Scope) -> bool:
    return spec.when is None or bool(scope.number(spec.when))


def _is_tied(spec: FamilyTensor, scope: Scope, family: Family) -> bool:
    """Whether this is a head that stands in for by the embedding."""
    embedding = family.tensors["embed"]
    tied = spec.otherwise_when is None or bool(scope.number(spec.otherwise_when))
    return spec.otherwise is not None and spec is not embedding and tied


def _matrix(spec: FamilyTensor, scope: Scope, layer: int | None) -> Matrix:
    name = spec.name[0] if layer is None else spec.name[0].replace("{n}", str(layer))
    return Matrix(name, tuple(scope.integer(expr) for expr in spec.shape))


class TileSource:
    """Draws tiles of one kind for matrices of any shape."""

    def __init__(self, kind: TensorKind, seed: int) -> None:
        self.kind = kind
        self.random = np.random.default_rng(seed)
        self._pools: dict[tuple[int, int, int], NDArray[np.uint8]] = {}

    def rows(self, shape: tuple[int, ...]) -> Iterator[NDArray[np.uint8]]:
        """Yield the tiles of a matrix, one row of tiles at a time."""
        rows, cols = shape
        blocks, columns = tile_grid(self.kind, (rows, cols))
        ragged_row = rows % 32 or 32
        ragged_col = cols % self.kind.tile_cols or self.kind.tile_cols
        for block in range(blocks):
            height = ragged_row if block == blocks - 1 else 32
            tiles = self._draw(height, self.kind.tile_cols, cols, columns)
            if ragged_col != self.kind.tile_cols:
                tiles[-1] = self._draw(height, ragged_col, cols, 1)[0]
            yield tiles.reshape(-1)

    def _draw(self, height: int, width: int, cols: int, count: int) -> NDArray[np.uint8]:
        """Return `count` tiles whose real part is height x width, for a matrix of `cols`."""
        key = (height, width, cols)
        if key not in self._pools:
            tiles = [self._tile(height, width, cols) for _ in range(POOL if width < 256 else 64)]
            self._pools[key] = np.stack(tiles)
        pool = self._pools[key]
        return pool[self.random.integers(0, len(pool), count)]

    def _tile(self, height: int, width: int, cols: int) -> NDArray[np.uint8]:
        normal = self.random.standard_normal((height, width)) / math.sqrt(cols)
        return _PACK[self.kind](normal.astype(np.float32))


def build(
    directory: Path, config: dict[str, Any], kind: TensorKind, *, embed: str = "bf16", seed: int = 0
) -> Path:
    """Write a model directory of random weights; return the path of its model.q4nx.

    Args:
        directory: Made when it is not there.
        config: config.json of the model.
        kind: Kind of all projections and of an untied head.
        embed: Kind of the embedding: `bf16`, or `kind` for the same as the projections.
        seed: Of the random numbers.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer(config["vocab_size"])))
    source = TileSource(kind, seed)
    specs = [_spec(matrix, source, embed) for matrix in matrices(config)]
    path = directory / "model.q4nx"
    write_container(path, specs, {"format": "q4nx", "source": "random weights"})
    return path


def tokenizer(vocab: int) -> dict[str, Any]:
    """Return a tokenizer.json of `vocab` tokens: every byte's character, then made-up words."""
    alphabet = ByteLevel.alphabet()
    words = [*sorted(alphabet)[:vocab], *(f"<{i}>" for i in range(vocab - len(alphabet)))]
    model = BPE(vocab={word: i for i, word in enumerate(words)}, merges=[])
    made = Tokenizer(model)
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevelDecoder()
    data: dict[str, Any] = json.loads(made.to_str())
    return data


def _spec(matrix: Matrix, source: TileSource, embed: str) -> TensorSpec:
    shape = matrix.shape
    is_embedding = "embed" in matrix.name
    if len(shape) == 2 and not (is_embedding and embed == "bf16"):
        nbytes = tensor_bytes(source.kind, shape)
        grid = (nbytes // source.kind.tile_bytes, source.kind.tile_bytes)
        return TensorSpec(matrix.name, "I8", grid, nbytes, lambda: source.rows(shape))
    nbytes = tensor_bytes(TensorKind.BF16, shape)
    return TensorSpec(matrix.name, "BF16", shape, nbytes, lambda: _plain(matrix, source.random))


def _plain(matrix: Matrix, random: np.random.Generator) -> Iterator[NDArray[np.uint8]]:
    """Yield a bfloat16 tensor in blocks: norms near 1, biases near 0, embeddings small."""
    if len(matrix.shape) == 1:
        centre = 0.0 if matrix.name.endswith("bias") else 1.0
        values = centre + 0.1 * random.standard_normal(matrix.shape)
        yield plain.pack(TensorKind.BF16, values.astype(np.float32)).reshape(-1)
        return
    rows, cols = matrix.shape
    pool = (0.02 * random.standard_normal((min(rows, 1024), cols))).astype(np.float32)
    packed = plain.pack(TensorKind.BF16, pool).reshape(len(pool), -1)
    for first in range(0, rows, len(pool)):
        count = min(len(pool), rows - first)
        yield packed[random.permutation(len(pool))[:count]].reshape(-1)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1.5b")
    parser.add_argument("--config", type=Path, help="config.json of another shape")
    parser.add_argument("--kind", choices=[k.value for k in _PACK], default="q4_1")
    parser.add_argument("--embed", choices=("bf16", "kind"), default="bf16")
    parser.add_argument("--gguf", type=Path, help="also write a GGUF of this shape")
    arguments = parser.parse_args()
    config = (
        json.loads(arguments.config.read_text()) if arguments.config else SHAPES[arguments.shape]
    )
    print(build(arguments.directory, config, TensorKind(arguments.kind), embed=arguments.embed))
    if arguments.gguf is not None:
        from tests.bench.random_gguf import write_gguf

        print(write_gguf(arguments.gguf, config, arguments.kind))


if __name__ == "__main__":
    main()
