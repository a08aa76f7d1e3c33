"""Tokens to text: added tokens, UTF-8 borders, both byte spellings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit.findings import InputError
from onebit.text import TextModel, load_text
from onebit.text.tokens import TokenBytes
from tests.fixtures.tiny_text import BOS, EOS, tiny_plan, tiny_tokenizer, write_text_files


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    directory = write_text_files(tmp_path_factory.mktemp("text"), template=None)
    return load_text(directory, tiny_plan())


def pieces(text: TextModel, ids: list[int]) -> list[str]:
    detokenizer = text.detokenizer()
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


def test_added_tokens_bypass_the_byte_decoder(text: TextModel) -> None:
    added = text.tokenizer.token_to_id("ilÖveyou")
    assert text.encode("ilÖveyou", add_special=False) == [added]
    assert text.decode([added]) == "ilÖveyou"


@pytest.mark.parametrize("prompt", ["你好<|start|>x", "你好 <|start|>x", "你好<|start|> x"])
def test_a_special_token_after_text_is_one_id(text: TextModel, prompt: str) -> None:
    ids = text.encode(prompt, add_special=False)
    start = text.tokenizer.token_to_id("<|start|>")
    assert ids.count(start) == 1
    assert text.decode(ids, special=True) == prompt
    assert text.decode(ids) == prompt.replace("<|start|>", "")


def test_characters_are_given_out_whole(text: TextModel) -> None:
    ids = list("😀你".encode())
    assert pieces(text, ids) == ["", "", "", "😀", "", "", "你", ""]


def test_a_cut_character_becomes_one_mark_at_the_end(text: TextModel) -> None:
    assert pieces(text, list("a😀".encode())[:4]) == ["a", "", "", "", "\ufffd"]


def test_a_lone_byte_becomes_one_mark_without_a_stall(text: TextModel) -> None:
    assert pieces(text, [0xFF, ord("a")]) == ["\ufffd", "a", ""]


def test_a_leading_space_is_kept(text: TextModel) -> None:
    ids = text.encode(" hello", add_special=False)
    assert text.decode(ids) == " hello"


@given(st.binary(max_size=40))
def test_joined_pieces_are_the_whole_decoded(text: TextModel, data: bytes) -> None:
    assert "".join(pieces(text, list(data))) == data.decode("utf-8", "replace")


@given(st.text(max_size=40))
def test_text_comes_back(text: TextModel, value: str) -> None:
    assert text.decode(text.encode(value, add_special=False), special=True) == value


def test_ids_without_a_token_are_empty(text: TextModel) -> None:
    assert text.decode([100_000, ord("a")]) == "a"


class Words:
    def __init__(self, words: list[str]) -> None:
        self.words = words

    def id_to_token(self, id: int) -> str | None:
        return self.words[id] if id < len(self.words) else None


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Metaspace", "replacement": "▁"},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    ],
)
def test_sentencepiece_spelling(decoder: dict[str, object]) -> None:
    words = Words(["▁Paris", "<0xF0>", "<0x9F>", "▁", "s"])
    tokens = TokenBytes(words, {"decoder": decoder}, "tokenizer.json")
    assert [tokens.piece(i) for i in range(6)] == [b" Paris", b"\xf0", b"\x9f", b" ", b"s", b""]


def test_an_unknown_decoder_is_refused() -> None:
    with pytest.raises(InputError) as raised:
        TokenBytes(Words([]), {"decoder": {"type": "WordPiece"}}, "tokenizer.json")
    assert raised.value.findings[0].code == "text.decoder"
    assert "WordPiece" in raised.value.findings[0].what


class TestBos:
    def test_it_stands_once(self, text: TextModel) -> None:
        assert text.encode("a") == [BOS, ord("a")]
        assert text.encode("<s>a") == [BOS, ord("a")]
        assert text.encode("") == [BOS]

    def test_only_when_the_model_wants_it(self, tmp_path: Path) -> None:
        write_text_files(tmp_path)
        with_none = load_text(tmp_path, tiny_plan(add_bos=False))
        assert with_none.encode("a") == [ord("a")]
        with_none.close()

    def test_an_explicit_setting_decides(self, tmp_path: Path) -> None:
        write_text_files(tmp_path, template=None, config={"add_bos_token": False})
        assert load_text(tmp_path, tiny_plan()).encode("a") == [ord("a")]

    def test_a_post_processor_counts(self, tmp_path: Path) -> None:
        from tokenizers.processors import TemplateProcessing

        write_text_files(tmp_path, template=None)
        tokenizer = tiny_tokenizer()
        tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
        )
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        text = load_text(tmp_path, tiny_plan(add_bos=False))
        assert text.encode("a") == [BOS, ord("a")]


class TestFiles:
    def load(self, directory: Path) -> list[tuple[str, str]]:
        with pytest.raises(InputError) as raised:
            load_text(directory, tiny_plan())
        return [(f.code, str(f.where)) for f in raised.value.findings]

    def test_a_missing_tokenizer(self, tmp_path: Path) -> None:
        assert self.load(tmp_path) == [("text.missing", str(tmp_path / "tokenizer.json"))]

    def test_every_broken_file_is_named_at_once(self, tmp_path: Path) -> None:
        write_text_files(tmp_path)
        whole = (tmp_path / "tokenizer.json").read_text()
        (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2])
        (tmp_path / "tokenizer_config.json").write_text("[]")
        (tmp_path / "generation_config.json").write_text("")
        codes = self.load(tmp_path)
        assert [code for code, _ in codes] == ["text.broken"] * 3
        assert codes[0][1].startswith(f"{tmp_path / 'tokenizer.json'}:")

    def test_json_that_is_no_tokenizer(self, tmp_path: Path) -> None:
        write_text_files(tmp_path)
        (tmp_path / "tokenizer.json").write_text('{"model": 1}')
        assert self.load(tmp_path)[0][0] == "text.broken"

    def test_a_template_that_does_not_compile_names_its_line(self, tmp_path: Path) -> None:
        write_text_files(tmp_path, template="a\n{% for %}")
        code, where = self.load(tmp_path)[0]
        assert code == "text.template"
        assert where.startswith(f"{tmp_path / 'tokenizer_config.json'}:2")

    def test_sampling_defaults_are_read(self, tmp_path: Path) -> None:
        write_text_files(tmp_path, template=None)
        made = {"temperature": 0.6, "top_k": 20, "do_sample": True, "eos_token_id": EOS}
        (tmp_path / "generation_config.json").write_text(json.dumps(made))
        assert load_text(tmp_path, tiny_plan()).defaults == {"temperature": 0.6, "top_k": 20}

    def test_an_unknown_tool_format(self, tmp_path: Path) -> None:
        write_text_files(tmp_path)
        with pytest.raises(InputError) as raised:
            load_text(tmp_path, tiny_plan(tool_format="nope"))
        assert raised.value.findings[0].code == "text.tool_format"
