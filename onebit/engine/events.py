"""What the engine says about a request: progress, prompt, token and finish events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onebit.findings import OnebitError

FinishReason = Literal["stop", "length", "cancelled", "error"]
"""`stop`: an end or stop token. `length`: max_tokens or the context is used up."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability (natural log) and the best alternatives, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token of the answer. End and stop tokens are not sent; see `FinishEvent.stop_token`."""

    choice: int
    token: int
    logprob: TokenLogprob | None = None
    timings: Timings | None = None
    """Where the time went so far, if that was asked for."""


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """How far the prompt is read, of choice 0 and only if asked for."""

    choice: int
    cached: int
    """Tokens that came from the prefix cache; the same in every report."""
    processed: int
    """Tokens read, cached ones included; rises to the prompt's length."""
    ms: float
    """Since it first ran."""


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """Log-probabilities of the prompt, of choice 0 and only if asked for; precedes its tokens."""

    choice: int
    logprobs: tuple[TokenLogprob | None, ...]
    """One for each prompt token; None for the first, which nothing precedes."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a sequence's time went. All values are finite and not negative."""

    queue_ms: float
    """From submission until it first ran."""
    prompt_ms: float
    """From then until the prompt was computed (and the first token chosen)."""
    prompt_n: int
    """Prompt tokens that were computed; `prompt_n + cache_n` is the prompt's length."""
    cache_n: int
    """Prompt tokens that came from the prefix cache."""
    predicted_ms: float
    """From the first token to the end."""
    predicted_n: int
    """Tokens generated, an end token included."""


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last event of a choice."""

    choice: int
    reason: FinishReason
    timings: Timings
    stop_token: int | None = None
    """The end or stop token, if one ended the answer."""
    stop_logprob: TokenLogprob | None = None
    """Its log-probability, if those of the answer were asked for."""
    context_full: bool = False
    """Whether `length` means that the context ran out before max_tokens."""
    error: OnebitError | None = None
    """What went wrong, if the reason is `error`."""


Event = TokenEvent | ProgressEvent | PromptEvent | FinishEvent
"""Any event of a request."""
