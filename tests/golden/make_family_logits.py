"""Makes families.npz: logits of the tiny models as the transformers library computes them.

Run in a throw-away environment that has torch, transformers and this tree's own needs:

    python -m tests.golden.make_family_logits

Every tiny container is written, its weights are decoded to float32, put into transformers' own
model of the family and run in float32 with eager attention.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from onebit.container import Container, decode
from onebit.manifest import inspect_directory
from onebit.plan import bind
from tests.fixtures.tiny_container import TINY_CONFIGS, write_tiny

HERE = Path(__file__).parent
PROMPT = 64
GREEDY = 32


def prompt_ids(vocab: int) -> np.ndarray:
    """Return the prompt: 64 ids from a fixed seed."""
    return np.random.default_rng(7).integers(4, vocab, PROMPT)


def model_for(family: str, config: dict) -> torch.nn.Module:
    """Return transformers' model of a tiny config, weights not yet set."""
    known = dict(config)
    for key in ("model_type", "generation"):
        known.pop(key, None)
    if family == "minicpm":  # transformers has no MiniCPM; Granite has the same scales
        depth, base = known.pop("scale_depth"), known.pop("dim_model_base")
        made = transformers.GraniteConfig(
            **known,
            embedding_multiplier=known.pop("scale_emb"),
            residual_multiplier=depth / known["num_hidden_layers"] ** 0.5,
            attention_multiplier=(known["hidden_size"] // known["num_attention_heads"]) ** -0.5,
            logits_scaling=known["hidden_size"] / base,
        )
        return transformers.GraniteForCausalLM(made)
    names = {
        "llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3",
        "phi3": "Phi3", "nanbeige": "Llama",
    }  # fmt: skip
    text = "Text" if family == "gemma3" else ""
    made = getattr(transformers, f"{names[family]}{text}Config")(**known, pad_token_id=0)
    made._attn_implementation = "eager"
    return getattr(transformers, f"{names[family]}ForCausalLM")(made)


def state_dict(family: str, directory: Path, config: dict) -> dict[str, torch.Tensor]:
    """Return the container's decoded weights under transformers' names and conventions."""
    manifest = inspect_directory(directory)
    assert manifest.plan is not None, [str(f) for f in manifest.findings]
    container = Container.open(directory / "model.q4nx")
    weights = bind(manifest.plan, container)
    views = [*weights.outer.values(), *(v for layer in weights.layers for v in layer.values())]
    state = {view.name: torch.from_numpy(decode(view).copy()) for view in views}
    if family == "gemma3":
        for name in state:
            if "norm" in name:
                state[name] -= 1
        state["model.embed_tokens.weight"] /= config["hidden_size"] ** 0.5
    if family == "phi3":
        for n in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{n}."
            parts = [state.pop(f"{prefix}self_attn.{x}_proj.weight") for x in "qkv"]
            state[f"{prefix}self_attn.qkv_proj.weight"] = torch.cat(parts)
            parts = [state.pop(f"{prefix}mlp.{x}_proj.weight") for x in ("gate", "up")]
            state[f"{prefix}mlp.gate_up_proj.weight"] = torch.cat(parts)
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    return state


@torch.no_grad()
def main() -> None:
    """Write families.npz."""
    stored: dict[str, np.ndarray] = {}
    for family in TINY_CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder)
            config = write_tiny(directory, family)
            model = model_for(family, config).float().eval()
            missing, unexpected = model.load_state_dict(
                state_dict(family, directory, config), strict=False
            )
            assert not unexpected, unexpected
            assert all("rotary" in name for name in missing), missing
            ids = torch.from_numpy(prompt_ids(config["vocab_size"]))[None]
            stored[f"{family}.logits"] = model(ids).logits[0].numpy()
            for _ in range(GREEDY):
                ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
            stored[f"{family}.greedy"] = ids[0, PROMPT:].numpy().astype(np.int32)
    np.savez_compressed(HERE / "families.npz", **stored)


if __name__ == "__main__":
    main()
