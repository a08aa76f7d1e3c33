"""Reads the text files of a model directory."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from onebit.findings import Finding, InputError, Where, error
from onebit.plan import Plan
from onebit.text.model import TextModel
from onebit.text.template import ChatTemplate, TemplateError
from onebit.text.tokens import TokenBytes
from onebit.text.tools import TOOL_FORMATS

TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def load_text_files(directory: Path, plan: Plan) -> TextModel:
    """Load tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json.

    Raises:
        InputError: a file is missing or broken, with all findings.
    """
    findings: list[Finding] = []
    loaded = _tokenizer(directory / "tokenizer.json", findings)
    config = _read_json(directory / "tokenizer_config.json", findings)
    generation = _read_json(directory / "generation_config.json", findings)
    source = _template_source(directory, config, findings)
    if plan.tool_format is not None and plan.tool_format not in TOOL_FORMATS:
        findings.append(_unknown_tool_format(plan.tool_format))
    if findings or loaded is None:
        raise InputError(findings)
    tokenizer, tokens = loaded
    template = _compile(directory, source)
    return TextModel(
        tokenizer=tokenizer,
        tokens=tokens,
        vocab=plan.vocab,
        bos=plan.tokens.bos,
        eos=plan.tokens.eos,
        add_bos=_adds_bos(tokenizer, config, plan),
        template=template,
        template_tokens=_template_tokens(tokenizer, config, plan),
        thinks=plan.thinks,
        tool_format=plan.tool_format,
        defaults={k: generation[k] for k in SAMPLING_DEFAULTS if _is_number(generation.get(k))}
        if generation
        else {},
    )


def _read_json(
    path: Path, findings: list[Finding], *, required: bool = False
) -> dict[str, Any] | None:
    """Return the object in `path`; None when it is absent or, with a finding, broken."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        value = json.loads(text) if text.strip() else None
    except FileNotFoundError:
        if required:
            findings.append(
                error(
                    "text.missing",
                    "The file does not exist.",
                    "Copy it from the model's publisher, or convert the model again.",
                    Where(file=str(path)),
                )
            )
        return None
    except json.JSONDecodeError as bad:
        where = Where(file=str(path), line=bad.lineno, column=bad.colno)
        findings.append(_broken(f"It is not valid JSON: {bad.msg}.", where))
        return None
    except (OSError, UnicodeDecodeError, RecursionError) as bad:
        findings.append(_broken(f"It cannot be read: {bad}.", Where(file=str(path))))
        return None
    if not isinstance(value, dict):
        what = "The file is empty." if value is None else "It does not hold a JSON object."
        findings.append(_broken(what, Where(file=str(path))))
        return None
    return value


def _broken(what: str, where: Where) -> Finding:
    return error("text.broken", what, "Copy the file again, or convert the model again.", where)


def _tokenizer(path: Path, findings: list[Finding]) -> tuple[Tokenizer, TokenBytes] | None:
    try:
        status = path.stat()
        identity = (status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError:
        identity = (0, 0, 0)  # reading it says what is wrong
    try:
        return _read_tokenizer(path, identity)
    except InputError as bad:
        findings += bad.findings
        return None


@lru_cache(maxsize=1)  # a start reads the same file twice: to check it, and to serve with it
def _read_tokenizer(
    path: Path,
    identity: tuple[int, int, int],  # noqa: ARG001 - part of the key
) -> tuple[Tokenizer, TokenBytes]:
    findings: list[Finding] = []
    tokenizer_json = _read_json(path, findings, required=True)
    if tokenizer_json is None:
        raise InputError(findings)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as bad:  # the library raises a bare Exception
        what = f"It is not a tokenizer: {bad}."
        raise InputError(_broken(what, Where(file=str(path)))) from bad
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, TokenBytes(tokenizer, tokenizer_json, str(path))


def _template_source(
    directory: Path, config: dict[str, Any] | None, findings: list[Finding]
) -> str | None:
    """Return the chat template: chat_template.jinja before tokenizer_config.json."""
    path = directory / "chat_template.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as bad:
        findings.append(_broken(f"It cannot be read: {bad}.", Where(file=str(path))))
        return None
    named = (config or {}).get("chat_template")
    if isinstance(named, list):
        by_name = {t.get("name"): t.get("template") for t in named if isinstance(t, dict)}
        named = by_name.get("tool_use") or by_name.get("default")
    if named is None or isinstance(named, str):
        return named or None
    where = Where(file=str(directory / "tokenizer_config.json"), field="chat_template")
    findings.append(_broken("The chat template is neither text nor a list of named texts.", where))
    return None


def _compile(directory: Path, source: str | None) -> ChatTemplate | None:
    if source is None:
        return None
    try:
        return ChatTemplate(source)
    except TemplateError as bad:
        own = directory / "chat_template.jinja"
        file = own if own.exists() else directory / "tokenizer_config.json"
        raise InputError(
            error(
                "text.template",
                f"The chat template does not compile: {bad.message}.",
                "Mend the template, or take it out to serve completions only.",
                Where(file=str(file), field="chat_template", line=bad.line),
            )
        ) from bad


def _unknown_tool_format(name: str) -> Finding:
    return error(
        "text.tool_format",
        f'The tool format "{name}" is not known.',
        f"Use one of {', '.join(sorted(TOOL_FORMATS))} in the plan or the family manifest.",
        Where(file="plan.json", field="tool_format"),
    )


def _adds_bos(tokenizer: Tokenizer, config: dict[str, Any] | None, plan: Plan) -> bool:
    """Return whether raw prompts begin with BOS.

    An explicit `add_bos_token` decides; else what the tokenizer's post-processor does, which
    is where newer models say it; else the plan.
    """
    explicit = (config or {}).get("add_bos_token")
    if isinstance(explicit, bool):
        return explicit
    if plan.tokens.bos is not None and tokenizer.post_processor is not None:
        ids: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
        if ids[:1] == [plan.tokens.bos]:
            return True
    return plan.tokens.add_bos


def _template_tokens(
    tokenizer: Tokenizer, config: dict[str, Any] | None, plan: Plan
) -> dict[str, str]:
    """Return the special tokens that templates may print."""
    out: dict[str, str] = {}
    for name in TOKEN_NAMES:
        value = (config or {}).get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            out[name] = value
    eos = plan.tokens.eos[0] if plan.tokens.eos else None
    for name, token in (("bos_token", plan.tokens.bos), ("eos_token", eos)):
        text = tokenizer.id_to_token(token) if token is not None else None
        if text is not None:
            out.setdefault(name, text)
    return out


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
