"""The special tokens of a model, gathered from its four JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onebit.families.config_json import lookup
from onebit.plan.model import SpecialTokens

Json = Mapping[str, Any]

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|eom_id|>", "</s>")
"""Tokens that end an assistant's turn whatever the eos list says, when the vocabulary has them
as special tokens: several published configs list only the end of the document."""


def special_tokens(
    config: Json, generation: Json, tokenizer_config: Json, tokenizer: Json
) -> SpecialTokens:
    """Return the special tokens.

    Args:
        config: config.json.
        generation: generation_config.json, or {}.
        tokenizer_config: tokenizer_config.json, or {}.
        tokenizer: tokenizer.json.
    """
    ids = _special_ids(tokenizer)
    bos = _first_id(lookup(config, "bos_token_id"))
    if bos is None:
        bos = ids.get(_text(tokenizer_config.get("bos_token")))
    eos: list[int] = []
    for source in (lookup(config, "eos_token_id"), generation.get("eos_token_id")):
        eos += [i for i in _id_list(source) if i not in eos]
    named = ids.get(_text(tokenizer_config.get("eos_token")))
    if named is not None and named not in eos:
        eos.append(named)
    eos += [ids[t] for t in _END_OF_TURN if t in ids and ids[t] not in eos]
    return SpecialTokens(
        bos=bos,
        eos=tuple(eos),
        pad=_first_id(lookup(config, "pad_token_id")),
        add_bos=bos is not None and _adds_bos(config, tokenizer_config, tokenizer),
    )


def _special_ids(tokenizer: Json) -> dict[str, int]:
    added = tokenizer.get("added_tokens")
    tokens = added if isinstance(added, list) else []
    return {
        t["content"]: t["id"]
        for t in tokens
        if isinstance(t, Mapping)
        and isinstance(t.get("content"), str)
        and isinstance(t.get("id"), int)
        and t.get("special")
    }


def _text(token: Any) -> str:
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else ""


def _id_list(value: Any) -> list[int]:
    items = value if isinstance(value, list) else [value]
    return [i for i in items if isinstance(i, int) and not isinstance(i, bool) and i >= 0]


def _first_id(value: Any) -> int | None:
    return next(iter(_id_list(value)), None)


def _adds_bos(config: Json, tokenizer_config: Json, tokenizer: Json) -> bool:
    for source in (tokenizer_config, config):
        flag = source.get("add_bos_token")
        if flag is not None:
            return bool(flag)
    return _processor_adds_bos(tokenizer.get("post_processor"))


def _processor_adds_bos(processor: Any) -> bool:
    """Whether a tokenizer.json post-processor opens every text with a special token."""
    if not isinstance(processor, Mapping):
        return False
    if processor.get("type") == "Sequence":
        parts = processor.get("processors")
        return any(_processor_adds_bos(p) for p in parts) if isinstance(parts, list) else False
    single = processor.get("single")
    first = single[0] if isinstance(single, list) and single else None
    return isinstance(first, Mapping) and "SpecialToken" in first
