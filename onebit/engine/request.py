"""What a caller asks of the engine: a request, its sampling parameters and its constraint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onebit.engine.errors import invalid


class Constraint(Protocol):
    """A grammar, schema or other rule that says which tokens may come next.

    Called on the engine thread, so it has to be quick. An exception ends its sequence with
    `ConstraintFailed` and nothing else.
    """

    def allowed(self) -> NDArray[np.bool_] | None:
        """Return [vocab] True where a token may come next, or None if all may.

        End tokens are masked like any other: a finished constraint allows only those.
        """
        ...

    def accept(self, token: int) -> None:
        """Take note of the chosen token."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from a row of logits.

    The order is fixed: repetition penalty, presence and frequency penalties, logit bias, bans,
    constraint; then, if temperature > 0, temperature, top_k, top_p, min_p and one draw.
    Ties go to the lowest token id.
    """

    temperature: float = 1.0
    """Divides the logits; 0 chooses the largest logit and ignores top_k, top_p, min_p, seed."""
    top_k: int = 0
    """Only the k largest logits; 0 for all."""
    top_p: float = 1.0
    """Only the fewest most likely tokens whose probabilities reach this sum, in (0, 1]."""
    min_p: float = 0.0
    """Only tokens at least this fraction as likely as the likeliest, in [0, 1]."""
    seed: int | None = None
    """The draw depends on the seed, the choice and the token's position alone; None is random."""
    presence_penalty: float = 0.0
    """Subtracted once from each token generated so far. The prompt does not count."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence among the generated tokens. The prompt does not count."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of all tokens of prompt and answer."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits by token id; -100 or less bans the token."""
    banned: frozenset[int] = frozenset()
    """Token ids that are never chosen."""
    ignore_eos: bool = False
    """Ban the model's end tokens, so that only max_tokens or the context ends the answer."""
    min_tokens: int = 0
    """Ban end and stop tokens until so many tokens are generated."""
    logprobs: int | None = None
    """None: none. k: the chosen token's log-probability and the k best. They are of the model's
    own distribution: log-softmax of the raw logits, before penalties, bias and temperature."""

    def check(self, vocab: int, max_logprobs: int) -> None:
        """Check ranges against a model of `vocab` tokens.

        Raises:
            InputError: a value is out of range; the finding's `where.field` names it.
        """
        ranges: tuple[tuple[str, float, float, float], ...] = (
            ("temperature", self.temperature, 0.0, math.inf),
            ("top_k", self.top_k, 0, math.inf),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -math.inf, math.inf),
            ("frequency_penalty", self.frequency_penalty, -math.inf, math.inf),
            ("repetition_penalty", self.repetition_penalty, 0.001, 1000),
            ("min_tokens", self.min_tokens, 0, math.inf),
            ("logprobs", self.logprobs or 0, 0, max_logprobs),
        )
        for name, value, low, high in ranges:
            if not (math.isfinite(value) and low <= value <= high):
                raise invalid(name, f"{name} is {value}", f"use a number from {low:g} to {high:g}")
        if not 0.0 < self.top_p <= 1.0:
            raise invalid("top_p", f"top_p is {self.top_p}", "use a number above 0, at most 1")
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocab:
                raise invalid(
                    "logit_bias",
                    f"logit_bias names token {token}",
                    f"use token ids from 0 to {vocab - 1}",
                )
            if math.isnan(bias) or bias == math.inf:
                raise invalid("logit_bias", f"logit_bias of token {token} is {bias}", "use numbers")
        _check_ids("banned", self.banned, vocab)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and what is wanted of it."""

    prompt: Sequence[int]
    """Token ids, at least one."""
    max_tokens: int | None = None
    """Most tokens to generate, an end token included; None for the rest of the context.
    0 only computes the prompt."""
    sampling: SamplingParams = SamplingParams()
    n: int = 1
    """Answers (choices) to the same prompt; they share the prompt's pages."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer, besides the model's end tokens."""
    prompt_logprobs: int | None = None
    """None: none. k: log-probabilities of the prompt's tokens with the k best, in a
    `PromptEvent`. Such a prompt is computed in full, without prefix cache hits."""
    progress: bool = False
    """Whether `ProgressEvent`s are sent while the prompt is read."""
    token_timings: bool = False
    """Whether every token comes with the timings so far."""
    cache: bool = True
    """Whether pages may come from and stay in the prefix cache."""
    deadline: float | None = None
    """Seconds from submission after which the request is ended; None for the engine's limit."""
    constraint: Callable[[], Constraint] | None = None
    """Makes one constraint for each choice."""
    id: str = ""
    """Name for log lines."""

    def check(self, vocab: int, max_logprobs: int, max_sequences: int) -> None:
        """Check everything but the prompt's length.

        Raises:
            InputError: a value is out of range; the finding's `where.field` names it.
        """
        if len(self.prompt) == 0:
            raise invalid("prompt", "the prompt has no tokens", "send at least one token")
        _check_ids("prompt", self.prompt, vocab)
        if self.max_tokens is not None and self.max_tokens < 0:
            raise invalid("max_tokens", f"max_tokens is {self.max_tokens}", "use 0 or more")
        if not 1 <= self.n <= max_sequences:
            raise invalid("n", f"n is {self.n}", f"use a number from 1 to {max_sequences}")
        if not 0 <= (self.prompt_logprobs or 0) <= max_logprobs:
            raise invalid(
                "logprobs",
                f"prompt_logprobs is {self.prompt_logprobs}",
                f"use a number from 0 to {max_logprobs}",
            )
        if self.deadline is not None and not self.deadline > 0:
            raise invalid("deadline", f"deadline is {self.deadline} s", "use a number above 0")
        _check_ids("stop_token_ids", self.stop_ids, vocab)
        self.sampling.check(vocab, max_logprobs)


def _check_ids(name: str, ids: Sequence[int] | frozenset[int], vocab: int) -> None:
    for token in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= token < vocab:
            raise invalid(
                name,
                f"{name} holds token {token}, outside the vocabulary",
                f"use token ids from 0 to {vocab - 1}",
            )


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of the engine; memory never grows beyond what they allow."""

    max_sequences: int = 8
    """Sequences that run at once; more wait."""
    queue: int = 64
    """Sequences that may wait; one more raises `QueueFull`."""
    prefill_chunk: int = 256
    """Most prompt rows in a step. While other sequences generate, fewer (see `stall`)."""
    stall: float = 1.5
    """Most time that prompt rows may add to a step in which sequences generate, as a multiple of
    the time of a step without them; more, but never over 3.5, when more sequences wait for their
    prompt than generate. The time between tokens stays within five plain steps."""
    logit_rows: int = 32
    """Most prompt rows in a step whose logits are wanted for `prompt_logprobs`."""
    prefix_cache: bool = True
    """Whether prompts reuse pages that earlier prompts and answers left."""
    deadline: float | None = None
    """Seconds that a request may take from submission, unless it says otherwise."""
    max_logprobs: int = 20
    """Most alternatives per token that a request may ask for."""

    def __post_init__(self) -> None:
        lows: tuple[tuple[str, float, float], ...] = (
            ("max_sequences", self.max_sequences, 1),
            ("queue", self.queue, 0),
            ("prefill_chunk", self.prefill_chunk, 1),
            ("stall", self.stall, 0.1),
            ("logit_rows", self.logit_rows, 1),
            ("max_logprobs", self.max_logprobs, 0),
        )
        for name, value, low in lows:
            if value < low:
                raise invalid(f"engine.{name}", f"{name} is {value}", f"use {low:g} or more")
        if self.deadline is not None and not self.deadline > 0:
            raise invalid("engine.deadline", f"deadline is {self.deadline}", "use a number above 0")
