"""Writes a GGUF of a given shape with random blocks, for measuring another engine on like work.

The blocks are drawn at random, not taken from a container: shapes and types match, values do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

TYPES = {
    "q4_1": GGMLQuantizationType.Q4_1,
    "q4_0": GGMLQuantizationType.Q4_0,
    "q8_a": GGMLQuantizationType.Q8_0,
    "q8_b": GGMLQuantizationType.Q8_0,
}
"""Kind of a container's tensors -> the GGUF type that does the same work."""
POOL_ROWS = 64


def write_gguf(path: Path, config: dict[str, Any], kind: str) -> Path:
    """Write a GGUF for `config` (llama or qwen2) with all matrices of `kind`; return its path."""
    arch = config["model_type"]
    writer = GGUFWriter(str(path), arch)
    _describe(writer, config)
    random = np.random.default_rng(0)
    for name, shape in _tensors(config):
        if len(shape) == 1:
            centre = 0.0 if name.endswith("bias") else 1.0
            writer.add_tensor(name, (centre + 0.1 * random.standard_normal(shape)).astype("f4"))
        else:
            blocks = _blocks(shape, TYPES[kind], random)
            writer.add_tensor(name, blocks, raw_dtype=TYPES[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    vocab = config["vocab_size"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(vocab)
    # A byte-level vocabulary that no merge ever leaves: servers need one, its words do not matter.
    alphabet = sorted(ByteLevel.alphabet())
    words = [*alphabet, *(f"<{i}>" for i in range(vocab - len(alphabet)))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([TokenType.NORMAL] * vocab)
    writer.add_token_merges([f"{alphabet[0]} {alphabet[1]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _tensors(config: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = hidden // heads
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (heads * dim, hidden),
        "attn_k.weight": (kv_heads * dim, hidden),
        "attn_v.weight": (kv_heads * dim, hidden),
        "attn_output.weight": (hidden, heads * dim),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (inter, hidden),
        "ffn_up.weight": (inter, hidden),
        "ffn_down.weight": (hidden, inter),
    }
    if config["model_type"] == "qwen2":
        shapes |= {f"attn_{x}.bias": shapes[f"attn_{x}.weight"][:1] for x in "qkv"}
    table = (config["vocab_size"], hidden)
    found = [("token_embd.weight", table), ("output_norm.weight", (hidden,))]
    if not config["tie_word_embeddings"]:
        found.append(("output.weight", table))
    for layer in range(config["num_hidden_layers"]):
        found += [(f"blk.{layer}.{name}", shape) for name, shape in shapes.items()]
    return found


def _blocks(
    shape: tuple[int, ...], kind: GGMLQuantizationType, random: np.random.Generator
) -> NDArray[np.uint8]:
    rows, cols = shape
    pool = random.standard_normal((POOL_ROWS, cols)) / np.sqrt(cols)
    packed = quantize(pool.astype(np.float32), kind)
    return packed[random.integers(0, POOL_ROWS, rows)]
