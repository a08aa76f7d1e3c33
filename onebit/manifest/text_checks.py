"""Checks of tokenizer.json and the chat template against the plan."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from onebit.findings import Finding, InputError, Where, error, warning
from onebit.manifest.model import TokenizerFacts
from onebit.plan import Plan
from onebit.text import TemplateError, TextModel, load_text

_MEND = "copy tokenizer.json from the original model, or convert the GGUF again"
_CONTROL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<\uff5c[^\uff5c<>]{1,40}\uff5c>|<(?:start|end)_of_turn>|</?s>|<[be]os>"
)
_USER: dict[str, Any] = {"role": "user", "content": "Hello"}
_TRIAL = (_USER,)
_MORE_TRIALS: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"role": "system", "content": "Be brief."}, _USER),
    (_USER, {"role": "assistant", "content": "Hello"}, _USER),
)
"""Branches that a template may refuse; what they write counts all the same."""


def read_template(directory: Path, tokenizer_config: dict[str, Any]) -> tuple[Path, str] | None:
    """Return the chat template and the file it comes from; chat_template.jinja has precedence.

    Raises:
        InputError: the file cannot be read, or the key holds no template.
    """
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path, path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as cause:
            what = f"cannot be read: {cause}"
            raise InputError(
                error("template.unreadable", what, "mend or remove it", Where(file=str(path)))
            ) from cause
    value = tokenizer_config.get("chat_template")
    if value is None:
        return None
    path = directory / "tokenizer_config.json"
    if isinstance(value, list):
        named = [v for v in value if isinstance(v, dict) and v.get("name") == "default"]
        value = named[0].get("template") if named else None
    if not isinstance(value, str):
        what = "is neither a template nor a list with one named default"
        where = Where(file=str(path), field="chat_template")
        raise InputError(error("template.type", what, "write the template as text", where))
    return path, value


def check_tokenizer(
    path: Path, tokenizer: dict[str, Any], plan: Plan | None
) -> tuple[TokenizerFacts | None, list[Finding]]:
    """Return the facts of a tokenizer.json, and what disagrees with the plan."""
    where = Where(file=str(path))
    model = tokenizer.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        what = "has no model with a vocabulary"
        return None, [error("tokenizer.model", what, _MEND, where)]
    ids = _ids(model["vocab"])
    added = tokenizer.get("added_tokens") or []
    ids |= {t["id"] for t in added if isinstance(t, dict) and isinstance(t.get("id"), int)}
    if not ids:
        return None, [error("tokenizer.model", "its vocabulary is empty", _MEND, where)]
    facts = TokenizerFacts(
        tokens=len(ids), largest_id=max(ids), model=str(model.get("type") or "BPE")
    )
    if plan is None:
        return facts, []
    found = [*_against_plan(facts, added, plan, where), *_end_tokens(ids, added, plan, where)]
    return facts, found


def _ids(vocab: dict[str, Any] | list[Any]) -> set[int]:
    if isinstance(vocab, list):
        return set(range(len(vocab)))
    return {i for i in vocab.values() if isinstance(i, int)}


def _against_plan(
    facts: TokenizerFacts, added: list[Any], plan: Plan, where: Where
) -> list[Finding]:
    found = []
    if facts.largest_id >= plan.vocab:
        found.append(
            error(
                "tokenizer.vocab",
                f"has ids up to {facts.largest_id}, but vocab_size in config.json is "
                f"{plan.vocab}: the tokenizer can make ids that the model has no row for",
                "restore vocab_size in config.json, or the tokenizer.json of this model",
                where,
            )
        )
    elif facts.tokens < plan.vocab // 2:
        found.append(
            error(
                "tokenizer.other_model",
                f"has {facts.tokens} tokens, the model {plan.vocab}: it belongs to another model",
                _MEND,
                where,
            )
        )
    if not any(isinstance(t, dict) and t.get("special") for t in added):
        found.append(
            warning(
                "tokenizer.no_special",
                "has no special tokens: control marks in chats would be split into pieces",
                _MEND,
                where,
            )
        )
    return found


def _end_tokens(ids: set[int], added: list[Any], plan: Plan, where: Where) -> list[Finding]:
    """Hold the ids of the bos and eos tokens against the vocabulary."""
    found = []
    for name, wanted in (("bos", (plan.tokens.bos,)), ("eos", plan.tokens.eos)):
        bad = [i for i in wanted if i is not None and i >= plan.vocab]
        if bad:
            what = f"{name} token id {bad[0]} is not below vocab_size {plan.vocab}"
            config = Where(file=str(Path(where.file or "").parent / "config.json"),
                           field=f"{name}_token_id")  # fmt: skip
            found.append(error("tokens.range", what, "write the model's own id", config))
    if not plan.tokens.eos:
        found.append(
            warning(
                "tokens.no_eos",
                "no end token is known: answers end only at max_tokens or a stop string",
                "write eos_token_id into config.json or generation_config.json",
                where,
            )
        )
    marked = {t.get("id") for t in added if isinstance(t, dict)}
    plain = [i for i in plan.tokens.eos if marked and i < plan.vocab and i not in marked]
    if plain:
        how = "an ordinary token" if plain[0] in ids else "no token at all"
        what = (
            f"the end token id {plain[0]} is {how} here, none of the added ones: config.json and "
            "tokenizer.json belong to different models"
        )
        mend = f"correct eos_token_id in config.json and generation_config.json, or {_MEND}"
        found.append(warning("tokens.plain_eos", what, mend, where))
    return found


def check_template(directory: Path, path: Path, plan: Plan) -> list[Finding]:
    """Render the chat template once and look at the tokens it makes."""
    where = Where(file=str(path))
    try:
        text = load_text(directory, plan)
    except InputError as cause:
        return list(cause.findings)
    try:
        prompt = text.render(_TRIAL)
        ids = text.encode_chat(prompt)
        marks = set(_CONTROL.findall(prompt + _more_branches(text)))
    except TemplateError as cause:
        what = f"the chat template fails on one user message: {cause}"
        return [error("template.fails", what, "use the template of the original model", where)]
    finally:
        text.close()
    found = []
    if not ids or "Hello" not in prompt:
        what = "the chat template drops the user's message"
        found.append(error("template.drops", what, "use the original model's template", where))
    split = [mark for mark in sorted(marks) if text.tokenizer.token_to_id(mark) is None]
    if split:
        found.append(
            warning(
                "template.unknown_special",
                f"the chat template writes {', '.join(split)}, which the tokenizer does not know "
                "as one token",
                "use the tokenizer.json and template of the same model",
                where,
            )
        )
    return found


def _more_branches(text: TextModel) -> str:
    written = ""
    for messages in _MORE_TRIALS:
        with suppress(TemplateError):
            written += text.render(messages)
    return written
