"""Writes tokenizer.json from a GGUF's own vocabulary."""

from __future__ import annotations

from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from onebit.convert.gguf_file import GgufFile
from onebit.findings import InputError, Where, error

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: dict[str, str] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "dbrx": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-4o": _O200K,
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "megrez", "kormo", "grok-2"), _QWEN2),
}
"""Pre-tokeniser name in the GGUF -> how text is split before merging."""
_DIGITS_FIRST = ("smollm",)
"""Pre-tokenisers that split every digit off before GPT-2's splitting."""
ALIASES: dict[str, str] = {
    **dict.fromkeys(("llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), "llama3"),
    **dict.fromkeys(
        (
            "phi-2",
            "mpt",
            "olmo",
            "exaone4",
            "gigachat",
            "mellum",
            "a.x-4.0",
            "jais",
            "trillion",
            "granite-docling",
        ),
        "gpt-2",
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        "smollm",
    ),
    **dict.fromkeys(("llama4", "kanana2", "talkie", "minimax-m2"), "gpt-4o"),
}
"""Names that llama.cpp (src/llama-vocab.cpp) splits in the same way as another one."""
_NFC = ("qwen2", "deepseek-r1-qwen")
_LLAMA3_NAMES = ("llama-bpe", "llama3")
"""Pre-tokenisers that look a whole word up before merging and, by default, add BOS."""
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "\u2581"


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """Return the tokenizer that a GGUF declares.

    Raises:
        InputError: no vocabulary, or a kind of tokenizer or pre-tokeniser that is not known.
    """
    kind = file.fields.get("tokenizer.ggml.model")
    tokens = _list(file, "tokens", str)
    if kind == "gpt2":
        tokenizer = _byte_level(file, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(file, tokens)
    else:
        what = f"is {kind!r}; known: gpt2 (byte-level BPE) and llama (SentencePiece BPE)"
        raise _refused(file, "tokenizer.ggml.model", what)
    _add_special(file, tokenizer, tokens)
    bos = _token_id(file, "bos_token_id", tokens)
    if bos is not None and adds_bos(file):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]}:0 $A:0",
            pair=f"{tokens[bos]}:0 $A:0 {tokens[bos]}:1 $B:1",
            special_tokens=[(tokens[bos], bos)],
        )
    return tokenizer


def adds_bos(file: GgufFile) -> bool:
    """Return whether a text begins with the BOS token.

    Without the flag SentencePiece and Llama 3 vocabularies add it, others do not: llama.cpp's
    rule.
    """
    if not isinstance(file.fields.get("tokenizer.ggml.bos_token_id"), int):
        return False
    flag = file.fields.get("tokenizer.ggml.add_bos_token")
    if flag is None:
        return file.fields.get("tokenizer.ggml.model") == "llama" or _pre(file) in _LLAMA3_NAMES
    return bool(flag)


def _pre(file: GgufFile) -> str:
    pre = str(file.fields.get("tokenizer.ggml.pre", "default"))
    return ALIASES.get(pre, pre)


def _refused(file: GgufFile, key: str, what: str) -> InputError:
    mend = "copy the original model's tokenizer.json into the directory and use --config-only"
    return InputError(error("convert.tokenizer", what, mend, Where(file=str(file.path), field=key)))


def _list(file: GgufFile, name: str, kind: type | tuple[type, ...]) -> list[Any]:
    key = f"tokenizer.ggml.{name}"
    values = file.fields.get(key)
    if not isinstance(values, list):
        raise _refused(file, key, "is missing" if values is None else "is no list")
    odd = next((i for i, value in enumerate(values) if not isinstance(value, kind)), None)
    if odd is not None:
        raise _refused(file, key, f"entry {odd} is a {type(values[odd]).__name__}")
    return values


def _token_id(file: GgufFile, name: str, tokens: list[str]) -> int | None:
    key = f"tokenizer.ggml.{name}"
    index = file.fields.get(key)
    if not isinstance(index, int):
        return None
    if not 0 <= index < len(tokens):
        raise _refused(file, key, f"is {index}; the vocabulary has {len(tokens)} tokens")
    return index


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = _pre(file)
    if pre not in SPLITS and pre not in _DIGITS_FIRST:
        known = ", ".join(sorted([*SPLITS, *_DIGITS_FIRST, *ALIASES]))
        raise _refused(file, "tokenizer.ggml.pre", f"is {pre!r}; known: {known}")
    pairs = [_pair(merge) for merge in _list(file, "merges", str)]
    vocab = {token: i for i, token in enumerate(tokens)}
    for at, (left, right) in enumerate(pairs):
        odd = next((part for part in (left, right, left + right) if part not in vocab), None)
        if odd is not None:
            what = f"merge {at} is {left!r} {right!r}: {odd!r} is no token"
            raise _refused(file, "tokenizer.ggml.merges", what)
    model = models.BPE(vocab, pairs, ignore_merges=pre in _LLAMA3_NAMES)
    tokenizer = Tokenizer(model)
    if pre in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    if pre in _DIGITS_FIRST:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    scores = _list(file, "scores", (int, float))
    if len(scores) != len(tokens):
        raise _refused(file, "tokenizer.ggml.scores", "does not give one score per token")
    unknown = _token_id(file, "unknown_token_id", tokens)
    vocab = {token: i for i, token in enumerate(tokens)}
    model = models.BPE(
        vocab,
        _merges_by_score(tokens, scores, vocab),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = bool(file.fields.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    if prefix:
        steps.insert(0, normalizers.Prepend(_SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    undo: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefix:
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer


def _merges_by_score(
    tokens: list[str], scores: list[float], vocab: dict[str, int]
) -> list[tuple[str, str]]:
    """Return the merges that SentencePiece's scores imply, best first.

    SentencePiece joins the neighbouring pair whose joined piece has the highest score; pairs that
    make the same piece are ordered by their parts, as Hugging Face's converter does.
    """
    ranked: list[tuple[float, int, int, int, str, str]] = []
    for index, token in enumerate(tokens):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            a, b = vocab.get(left), vocab.get(right)
            if a is not None and b is not None:
                ranked.append((-scores[index], index, a, b, left, right))
    ranked.sort(key=lambda merge: merge[:4])
    return [(left, right) for *_, left, right in ranked]


def _add_special(file: GgufFile, tokenizer: Tokenizer, tokens: list[str]) -> None:
    has_kinds = "tokenizer.ggml.token_type" in file.fields
    kinds = _list(file, "token_type", int) if has_kinds else []
    special, plain = [], []
    for token, kind in zip(tokens, kinds, strict=False):
        if kind in (_UNKNOWN, _CONTROL):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """Return tokenizer_config.json: special tokens by name and the chat template."""
    tokens = file.fields.get("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos(file),
        "clean_up_tokenization_spaces": False,
    }
    for key, name in (
        ("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ):  # fmt: skip
        index = file.fields.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            config[key] = tokens[index]
    template = file.fields.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    return config


def generation_config(file: GgufFile) -> dict[str, Any]:
    """Return generation_config.json: every token that ends an answer."""
    ends = [
        index
        for name in ("eos", "eot", "eom")
        if isinstance(index := file.fields.get(f"tokenizer.ggml.{name}_token_id"), int)
    ]
    config: dict[str, Any] = {}
    bos = file.fields.get("tokenizer.ggml.bos_token_id")
    if isinstance(bos, int):
        config["bos_token_id"] = bos
    if ends:
        config["eos_token_id"] = list(dict.fromkeys(ends))
    return config
