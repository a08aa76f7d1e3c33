"""Tokenizers and templates that do not belong to the model, planted and found by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onebit.findings import Finding, Severity
from onebit.manifest import inspect_directory
from tests.fixtures.tiny_container import byte_tokenizer, write_tiny
from tests.fixtures.traps import found

FAMILIES = ["llama", "qwen2", "gemma3"]
Json = dict[str, Any]


def edit(directory: Path, name: str, change: Callable[[Json], object]) -> None:
    path = directory / name
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def template(directory: Path, text: str) -> list[Finding]:
    """Write a chat template and return the findings that are no notes."""
    (directory / "chat_template.jinja").write_text(text)
    findings = inspect_directory(directory, deep=True).findings
    return [f for f in findings if f.severity is not Severity.NOTE]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_with_more_ids_than_the_embedding_has_rows(tmp_path: Path, family: str) -> None:
    write_tiny(tmp_path, family)
    byte_tokenizer(330).save(str(tmp_path / "tokenizer.json"))
    finding = found(tmp_path, "tokenizer.vocab")
    assert finding.severity is Severity.ERROR
    assert "329" in finding.what
    assert "320" in finding.what


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_of_a_much_smaller_model(tmp_path: Path, family: str) -> None:
    write_tiny(tmp_path, family, changes={"vocab_size": 640})
    byte_tokenizer(300).save(str(tmp_path / "tokenizer.json"))
    finding = found(tmp_path, "tokenizer.other_model")
    assert finding.severity is Severity.ERROR
    assert "300 tokens, the model 640" in finding.what


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: t.pop("model"), "no model with a vocabulary"),
        (lambda t: t.update(model={"type": "BPE", "vocab": {}}, added_tokens=[]), "is empty"),
    ],
)
def test_a_tokenizer_without_a_vocabulary(
    tmp_path: Path, change: Callable[[Json], object], what: str
) -> None:
    write_tiny(tmp_path)
    edit(tmp_path, "tokenizer.json", change)
    assert what in found(tmp_path, "tokenizer.model").what


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_that_lost_its_special_tokens(tmp_path: Path, family: str) -> None:
    write_tiny(tmp_path, family)
    edit(tmp_path, "tokenizer.json", lambda t: t.update(added_tokens=[]))
    assert found(tmp_path, "tokenizer.no_special").severity is Severity.WARNING


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_token_id_outside_the_embedding(tmp_path: Path, name: str) -> None:
    write_tiny(tmp_path, changes={f"{name}_token_id": 320})
    finding = found(tmp_path, "tokens.range")
    assert finding.where.field == f"{name}_token_id"
    assert (finding.where.file or "").endswith("config.json")


def test_no_end_token(tmp_path: Path) -> None:
    write_tiny(tmp_path, changes={"eos_token_id": None})
    edit(tmp_path, "tokenizer.json", lambda t: t.update(added_tokens=t["added_tokens"][:2]))
    edit(tmp_path, "tokenizer_config.json", lambda c: c.pop("eos_token"))
    assert "eos_token_id" in found(tmp_path, "tokens.no_eos").mend


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("token", "how"), [(70, "an ordinary token"), (315, "no token at all")])
def test_an_end_token_of_another_tokenizer(
    tmp_path: Path, family: str, token: int, how: str
) -> None:
    write_tiny(tmp_path, family, changes={"eos_token_id": [token]})
    byte_tokenizer(310).save(str(tmp_path / "tokenizer.json"))
    finding = found(tmp_path, "tokens.plain_eos")
    assert finding.severity is Severity.WARNING
    assert how in finding.what


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "mark", ["<|nobody|>", "<\uff5cUser\uff5c>", "<start_of_turn>", "</s>", "<bos>"]
)
def test_a_template_with_a_mark_that_is_no_token(tmp_path: Path, family: str, mark: str) -> None:
    write_tiny(tmp_path, family)
    text = "{% for m in messages %}" + mark + "{{ m.content }}{% endfor %}"
    assert [f.code for f in template(tmp_path, text)] == ["template.unknown_special"]
    assert mark in found(tmp_path, "template.unknown_special").what


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_a_mark_that_only_another_turn_writes(tmp_path: Path, role: str) -> None:
    write_tiny(tmp_path)
    text = (
        "{% for m in messages %}{% if m.role == '" + role + "' %}<|" + role + "|>{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    assert [f.code for f in template(tmp_path, text)] == ["template.unknown_special"]


def test_a_template_may_refuse_a_system_turn(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    text = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none here') }}"
        "{% endif %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    assert template(tmp_path, text) == []


def test_a_template_that_drops_the_message(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    assert [f.code for f in template(tmp_path, "<|im_start|>Hi<|im_end|>")] == ["template.drops"]


def test_no_template(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    edit(tmp_path, "tokenizer_config.json", lambda c: c.pop("chat_template"))
    finding = found(tmp_path, "template.missing")
    assert finding.severity is Severity.WARNING
    assert "chat_template.jinja" in finding.mend


@pytest.mark.parametrize("value", [7, [{"name": "tool_use", "template": "x"}]])
def test_a_template_that_is_no_text(tmp_path: Path, value: object) -> None:
    write_tiny(tmp_path)
    edit(tmp_path, "tokenizer_config.json", lambda c: c.update(chat_template=value))
    assert found(tmp_path, "template.type").where.field == "chat_template"


def test_a_template_in_another_encoding(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{{ x }}")
    finding = found(tmp_path, "template.unreadable")
    assert (finding.where.file or "").endswith("chat_template.jinja")
