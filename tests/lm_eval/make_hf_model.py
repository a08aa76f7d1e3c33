"""Writes a model directory's dequantised weights as a Hugging Face directory in float32.

Run in a throw-away environment that has torch, transformers and this tree's own needs:

    python -m tests.lm_eval.make_hf_model MODEL_DIRECTORY OUT
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tests.golden.make_family_logits import model_for, state_dict


def main(directory: Path, out: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer to `out`."""
    config = json.loads((directory / "config.json").read_text())
    family = {"gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    ends = {key: config.pop(key, None) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model = model_for(family, {**config, "tie_word_embeddings": False}).float().eval()
    missing, unexpected = model.load_state_dict(state_dict(family, directory, config), strict=False)
    assert not unexpected, unexpected
    assert all("rotary" in name for name in missing), missing
    for key in ("bos_token_id", "eos_token_id"):
        setattr(model.config, key, ends[key])
        setattr(model.generation_config, key, ends[key])
    model.save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(directory / name, out / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
