"""Constrained output: JSON, JSON schemas and grammars, through the optional llguidance."""

from __future__ import annotations

import importlib
import importlib.util
import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.engine import Constraint
from onebit.server.errors import bad_request, unsupported
from onebit.text import Detokenizer, TextModel
from onebit.text.reasoning import CLOSE

MAX_GRAMMAR = 1 << 18
"""Longest schema or grammar, in characters."""

ConstraintMaker = Callable[[], Constraint]


class GrammarMaker:
    """Makes constraints for one model. Thread-safe."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._tokenizer: Any = None

    def json_schema(self, schema: Any, param: str, *, skip_thinking: bool) -> ConstraintMaker:
        """Return a maker of constraints to JSON that fits `schema` (true: any JSON object).

        Raises:
            ApiError: 400 naming `param`: the schema is not valid or llguidance is not installed.
        """
        library = _library(param)
        text = json.dumps({"type": "object"} if schema is True else schema)
        try:
            grammar = library.LLMatcher.grammar_from_json_schema(text)
        except ValueError as error:
            raise bad_request(
                param, f"The schema is not valid: {error}", "invalid_schema"
            ) from None
        return self._maker(grammar, param, skip_thinking)

    def lark(self, grammar: str, param: str, *, skip_thinking: bool) -> ConstraintMaker:
        """Return a maker of constraints to a grammar in GBNF or Lark notation.

        Raises:
            ApiError: 400 naming `param`.
        """
        library = _library(param)
        try:
            made = (
                library.grammar_from("gbnf", grammar)
                if "::=" in grammar
                else library.LLMatcher.grammar_from_lark(grammar)
            )
        except Exception as error:  # the converter raises whatever it meets
            raise bad_request(param, f"The grammar is not valid: {error}") from None
        return self._maker(made, param, skip_thinking)

    def _maker(self, grammar: str, param: str, skip_thinking: bool) -> ConstraintMaker:
        if len(grammar) > MAX_GRAMMAR:
            raise bad_request(param, f"It is longer than {MAX_GRAMMAR} characters.")
        tokenizer = self._get_tokenizer()
        first = _library(param).LLMatcher(tokenizer, grammar, log_level=0)
        if first.is_error():
            why = first.get_error().strip().splitlines()[0][:300]
            raise bad_request(param, f"{param} cannot be used: {why}", "invalid_schema")

        def make() -> Constraint:
            made: Constraint = GrammarConstraint(
                first.deep_copy(), tokenizer.vocab_size, self._text.vocab
            )
            return AfterThinking(made, self._text.detokenizer()) if skip_thinking else made

        return make

    def _get_tokenizer(self) -> Any:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = importlib.import_module("llguidance").LLTokenizer(
                    self._text.tokenizer.to_str(),
                    n_vocab=max(self._text.vocab, self._text.tokenizer.get_vocab_size()),
                    eos_token=list(self._text.eos) or None,
                )
            return self._tokenizer


class GrammarConstraint:
    """A grammar's state after the tokens so far. See `onebit.engine.Constraint`."""

    def __init__(self, matcher: Any, known: int, vocab: int) -> None:
        self._matcher = matcher
        self._words = np.zeros((known + 31) // 32, np.int32)
        self._vocab = vocab

    def allowed(self) -> NDArray[np.bool_]:
        """Return [vocab] True where a token may come next."""
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error().strip().splitlines()[0][:300])
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return bits[: self._vocab].astype(np.bool_)

    def accept(self, token: int) -> None:
        """Take note of the chosen token."""
        self._matcher.consume_token(token)


class AfterThinking:
    """Lets the model think freely and holds only what follows to the grammar."""

    def __init__(self, inner: Constraint, detokenizer: Detokenizer) -> None:
        self._inner = inner
        self._detokenizer = detokenizer
        self._tail = ""
        self._thinking = True

    def allowed(self) -> NDArray[np.bool_] | None:
        """Return the inner mask once the think block has closed."""
        return None if self._thinking else self._inner.allowed()

    def accept(self, token: int) -> None:
        """Take note of the chosen token."""
        if not self._thinking:
            self._inner.accept(token)
            return
        self._tail = (self._tail + self._detokenizer.push(token))[-64:]
        self._thinking = CLOSE not in self._tail


def _library(param: str) -> Any:
    """Return the module llguidance.

    Raises:
        ApiError: 400 naming `param`: it is not installed.
    """
    if importlib.util.find_spec("llguidance") is None:
        raise unsupported(
            param,
            f"{param} needs the package llguidance on the server: pip install 'onebit[grammar]'.",
        )
    return importlib.import_module("llguidance")
