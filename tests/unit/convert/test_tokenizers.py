"""The tokenizer made from a GGUF against ids of independent tokenisers."""

from __future__ import annotations

import gzip
import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer

from onebit.convert.gguf_file import GgufFile
from onebit.convert.tokenizer import ALIASES, gguf_tokenizer
from onebit.findings import InputError
from tests.golden.token_texts import TEXTS

STORED = Path(__file__).parents[2] / "golden" / "token_ids.json.gz"
BYTE_LEVEL = (
    ("gpt-2", "gpt-2"),
    ("default", "gpt-2"),
    (None, "gpt-2"),
    ("qwen2", "qwen2"),
    ("deepseek-r1-qwen", "qwen2"),
    ("llama-bpe", "llama-bpe"),
    ("llama3", "llama-bpe"),
    ("gpt-4o", "gpt-4o"),
)
"""Pre-tokeniser in the GGUF -> the stored vocabulary that it goes with."""
BYTE_IDS = [str(pre) for pre, _ in BYTE_LEVEL]


@cache
def stored() -> dict[str, Any]:
    values: dict[str, Any] = json.loads(gzip.decompress(STORED.read_bytes()))
    return values


def tokenizer_of(
    path: Path, case: dict[str, Any], pre: str | None, bos: bool | None = False, bos_id: int = 1
) -> Tokenizer:
    """Write a GGUF that holds a stored vocabulary and return what is made of it."""
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(case["model"])
    writer.add_token_list(case["tokens"])
    writer.add_token_types(case["types"])
    writer.add_bos_token_id(bos_id)
    if bos is not None:
        writer.add_add_bos_token(bos)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    if "merges" in case:
        writer.add_token_merges(case["merges"])
    if "scores" in case:
        writer.add_token_scores(case["scores"])
        writer.add_add_space_prefix(case["prefix"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(path) as file:
        return gguf_tokenizer(file)


def differences(tokenizer: Tokenizer, ids: list[list[int]]) -> list[tuple[str, Any, Any]]:
    """Return the texts whose ids are others, with what was made and what was stored."""
    assert len(ids) == len(TEXTS)
    made = [tokenizer.encode(text).ids for text in TEXTS]
    return [x for x in zip(TEXTS, made, ids, strict=True) if x[1] != x[2]]


def changed(tokenizer: Tokenizer, texts: list[str]) -> list[tuple[str, str]]:
    """Return the texts that do not come back, with what comes back."""
    back = [
        tokenizer.decode(tokenizer.encode(t, add_special_tokens=False).ids, False) for t in texts
    ]
    return [pair for pair in zip(texts, back, strict=True) if pair[0] != pair[1]]


def test_texts_are_many_and_distinct() -> None:
    assert len(TEXTS) == len(set(TEXTS)) > 190


@pytest.mark.parametrize(("pre", "name"), BYTE_LEVEL, ids=BYTE_IDS)
def test_byte_level_ids(pre: str | None, name: str, tmp_path: Path) -> None:
    case = stored()[name]
    assert differences(tokenizer_of(tmp_path / "a.gguf", case, pre), case["ids"]) == []


@pytest.mark.parametrize(("pre", "name"), BYTE_LEVEL, ids=BYTE_IDS)
def test_byte_level_text_comes_back(pre: str | None, name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path / "a.gguf", stored()[name], pre)
    texts = [unicodedata.normalize("NFC", t) if name == "qwen2" else t for t in TEXTS]
    assert changed(tokenizer, texts) == []


@pytest.mark.parametrize("name", ["prefixed", "unprefixed"])
def test_sentencepiece_ids(name: str, tmp_path: Path) -> None:
    """Two space signs in a text are not the piece of two spaces: a GGUF holds that as spaces."""
    case = stored()[name]
    found = differences(tokenizer_of(tmp_path / "a.gguf", case, None), case["ids"])
    assert [x for x in found if case["prefix"] or "\u2581" not in x[0]] == []


@pytest.mark.parametrize("name", ["prefixed", "unprefixed"])
def test_sentencepiece_text_comes_back(name: str, tmp_path: Path) -> None:
    """All but two kinds: the sign for a space is one, a prefix follows every control token."""
    case = stored()[name]
    control = [t for t, kind in zip(case["tokens"], case["types"], strict=True) if kind in (2, 3)]
    texts = [
        text
        for text in TEXTS
        if "\u2581" not in text and not (case["prefix"] and any(c in text for c in control))
    ]
    assert len(texts) > 175
    assert changed(tokenizer_of(tmp_path / "a.gguf", case, None), texts) == []


def test_smollm2_ids(smollm2_source: Path) -> None:
    with GgufFile(smollm2_source) as file:
        tokenizer = gguf_tokenizer(file)
    assert differences(tokenizer, stored()["smollm2"]["ids"]) == []


def test_smollm2_text_comes_back(smollm2: Path) -> None:
    """From the directory that a conversion leaves; its vocabulary has no token for byte 0x1D."""
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert changed(tokenizer, [text for text in TEXTS if "\x1d" not in text]) == []


@pytest.mark.parametrize(
    ("name", "pre", "flag", "begins"),
    [
        ("llama-bpe", "llama-bpe", None, True),
        ("llama-bpe", "llama-bpe", False, False),
        ("llama-bpe", "smaug-bpe", None, False),
        ("llama-bpe", "dbrx", None, False),
        ("qwen2", "qwen2", None, False),
        ("qwen2", "deepseek-r1-qwen", True, True),
        ("gpt-4o", "gpt-4o", None, False),
        ("prefixed", None, None, True),
        ("unprefixed", None, None, True),
        ("unprefixed", None, False, False),
    ],
)
def test_bos(name: str, pre: str | None, flag: bool | None, begins: bool, tmp_path: Path) -> None:
    """Without the flag SentencePiece and Llama 3 vocabularies begin a text with BOS."""
    case = stored()[name]
    tokenizer = tokenizer_of(tmp_path / "a.gguf", case, pre, bos=flag)
    for text, ids in list(zip(TEXTS, case["ids"], strict=True))[:30]:
        assert tokenizer.encode(text).ids == ([1, *ids] if begins else ids)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids


@pytest.mark.parametrize(("pre", "found"), [("llama-bpe", True), ("dbrx", False)])
def test_only_llama3_looks_whole_words_up(pre: str, found: bool, tmp_path: Path) -> None:
    case = stored()["llama-bpe"]
    index = case["tokens"].index("\u0120hqvwj")
    ids = tokenizer_of(tmp_path / "a.gguf", case, pre).encode(" hqvwj").ids
    assert (ids == [index]) is found


@pytest.mark.parametrize(
    ("alias", "name"),
    [("llama-v3", "llama-bpe"), ("falcon3", "llama-bpe"), ("phi-2", "gpt-2"), ("llama4", "gpt-4o")],
)
def test_another_name_of_a_splitter_is_known(alias: str, name: str, tmp_path: Path) -> None:
    case = stored()[name]
    assert differences(tokenizer_of(tmp_path / "a.gguf", case, alias), case["ids"]) == []


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_every_alias_makes_the_tokenizer_of_its_name(alias: str, tmp_path: Path) -> None:
    """All of tokenizer.json, BOS rule and lookup of whole words included."""
    case = stored()["gpt-2"]
    made, named = (
        tokenizer_of(tmp_path / f"{i}.gguf", case, pre, bos=None)
        for i, pre in enumerate((alias, ALIASES[alias]))
    )
    assert made.to_str() == named.to_str()


@pytest.mark.parametrize("pre", ["stablelm2", "hunyuan", "solar-open", "megrez", "kormo", "grok-2"])
def test_qwen2s_splitter_without_its_normaliser(pre: str, tmp_path: Path) -> None:
    case = stored()["qwen2"]
    found = differences(tokenizer_of(tmp_path / "a.gguf", case, pre), case["ids"])
    assert [x for x in found if unicodedata.is_normalized("NFC", x[0])] == []


def test_unknown_pre_tokeniser_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as problem:
        tokenizer_of(tmp_path / "a.gguf", stored()["gpt-2"], "chatglm-bpe")
    (finding,) = problem.value.findings
    assert finding.code == "convert.tokenizer"
    assert "chatglm-bpe" in finding.what
    assert "gpt-4o" in finding.what


def test_a_merge_of_no_token_is_refused(tmp_path: Path) -> None:
    case = stored()["gpt-2"]
    case = {**case, "merges": [*case["merges"], "nowhere \u2603"]}
    with pytest.raises(InputError) as problem:
        tokenizer_of(tmp_path / "a.gguf", case, "gpt-2")
    (finding,) = problem.value.findings
    assert finding.where.field == "tokenizer.ggml.merges"
    assert "'nowhere'" in finding.what


def test_too_few_scores_are_refused(tmp_path: Path) -> None:
    case = stored()["prefixed"]
    with pytest.raises(InputError) as problem:
        tokenizer_of(tmp_path / "a.gguf", {**case, "scores": case["scores"][1:]}, None)
    (finding,) = problem.value.findings
    assert finding.where.field == "tokenizer.ggml.scores"


def test_a_bos_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    case = stored()["gpt-2"]
    with pytest.raises(InputError) as problem:
        tokenizer_of(tmp_path / "a.gguf", case, "gpt-2", bos=True, bos_id=len(case["tokens"]))
    (finding,) = problem.value.findings
    assert finding.where.field == "tokenizer.ggml.bos_token_id"
