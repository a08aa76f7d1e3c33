"""Makes <model>.npz: what the transformers library computes on a converted real model.

Run in a throw-away environment that has torch, transformers and this tree's own needs:

    python -m tests.golden.make_model_logits MODEL.gguf NAME

The GGUF is converted, the container's weights are decoded to float32 and put into transformers'
own model. Of the logits, the 16 greatest, 128 fixed ones and the log-sum-exp are stored for every
position of every prompt, and 64 greedy tokens with the smallest margin met on the way.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from onebit.convert import convert_gguf
from tests.golden.make_family_logits import model_for, state_dict
from tests.golden.prompts import PROMPTS, sampled_ids

HERE = Path(__file__).parent
GREEDY = 64
TOP = 16


@torch.no_grad()
def main(source: Path, name: str) -> None:
    """Write NAME.npz."""
    stored: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        convert_gguf(source, directory)
        config = json.loads((directory / "config.json").read_text())
        family = {"gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            config.pop(key, None)
        model = model_for(family, config).float().eval()
        weights = state_dict(family, directory, config)
        missing, unexpected = model.load_state_dict(weights, strict=False)
        assert not unexpected, unexpected
        assert all("rotary" in key for key in missing), missing
        if not torch.equal(model.lm_head.weight, weights["lm_head.weight"]):
            model.lm_head.weight = torch.nn.Parameter(weights["lm_head.weight"])
        if not torch.equal(model.model.embed_tokens.weight, weights["model.embed_tokens.weight"]):
            model.model.embed_tokens.weight = torch.nn.Parameter(
                weights["model.embed_tokens.weight"]
            )
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        sampled = sampled_ids(config["vocab_size"])
        for n, prompt in enumerate(PROMPTS):
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            logits = model(ids).logits[0]
            stored[f"{n}.ids"] = ids[0].numpy().astype(np.int32)
            top = logits.topk(TOP)
            stored[f"{n}.top_ids"] = top.indices.numpy().astype(np.int32)
            stored[f"{n}.top"] = top.values.numpy()
            stored[f"{n}.sampled"] = logits[:, sampled].numpy()
            stored[f"{n}.lse"] = logits.double().logsumexp(-1).numpy()
            text, margin = [], np.inf
            cache = None
            step = ids
            for _ in range(GREEDY):
                result = model(step, past_key_values=cache, use_cache=True)
                cache = result.past_key_values
                two = result.logits[0, -1].topk(2)
                margin = min(margin, float(two.values[0] - two.values[1]))
                text.append(int(two.indices[0]))
                step = two.indices[:1][None]
            stored[f"{n}.greedy"] = np.asarray(text, np.int32)
            stored[f"{n}.margin"] = np.float64(margin)
            print(repr(prompt), margin, repr(tokenizer.decode(text)))
    np.savez_compressed(HERE / f"{name}.npz", **stored)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
