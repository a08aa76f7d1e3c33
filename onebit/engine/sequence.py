"""One sequence: a choice of a request with its tokens, pages and times."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np

from onebit.engine.events import ProgressEvent, Timings, TokenLogprob
from onebit.engine.pages import chain_key
from onebit.engine.request import GenerationRequest
from onebit.engine.sampler import Sampler

if TYPE_CHECKING:
    from onebit.engine.handle import GenerationHandle


class State(Enum):
    """Where a sequence stands."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """State of one choice. Positions 0 .. computed - 1 have their KV in `pages`.

    Args:
        request: What was asked.
        choice: Number of the choice.
        handle: Where its events go.
        context: Most tokens of prompt and answer together.
        page_size: Positions per page.
        root: Start of its chain of page keys. Sequences share pages only within one root.
        keep: Whether its pages stay cached after it.
        eos: The model's end tokens.
        now: Time of submission, in seconds.
        deadline_seconds: Seconds after `now` within which it has to be finished, or None.
    """

    def __init__(
        self,
        request: GenerationRequest,
        choice: int,
        handle: GenerationHandle,
        *,
        context: int,
        page_size: int,
        root: bytes,
        keep: bool,
        eos: frozenset[int],
        now: float,
        deadline_seconds: float | None,
    ) -> None:
        self.request = request
        self.choice = choice
        self.handle = handle
        self.state = State.WAITING
        self.deadline = None if deadline_seconds is None else now + deadline_seconds

        self.n_prompt = len(request.prompt)
        room = context - self.n_prompt
        self.max_new = room if request.max_tokens is None else min(request.max_tokens, room)
        self.context_bound = request.max_tokens is None or request.max_tokens > room
        self.limit = self.n_prompt + self.max_new
        self.tokens = np.empty(self.limit, np.int32)
        self.tokens[: self.n_prompt] = request.prompt
        self.length = self.n_prompt
        self.computed = 0

        self.pages: list[int] = []
        self.slot = -1
        self.keep = keep
        self.published = 0
        self.cached = 0
        self.restarted = False
        self._page_size = page_size
        self._keys = [root]

        self.end_ids = request.stop_ids if request.sampling.ignore_eos else request.stop_ids | eos
        self.sampler = Sampler(
            request.sampling,
            choice,
            self.tokens[: self.n_prompt],
            self.end_ids,
            eos,
            request.constraint() if request.constraint is not None else None,
        )
        self.logprobs = request.sampling.logprobs
        self.prompt_logprobs = request.prompt_logprobs if choice == 0 else None
        self.prompt_logprobs_done: list[TokenLogprob | None] = [None]

        self.reported = -1 if request.progress and choice == 0 else self.n_prompt
        """Prompt tokens last reported as read; all of them when nothing is to be reported."""
        self._reported_cached = 0

        self.submitted = now
        self._started: float | None = None
        self._prompt_done: float | None = None

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return self.length - self.n_prompt

    @property
    def pending(self) -> int:
        """Tokens whose KV is still to be computed; 1 while it generates."""
        return self.length - self.computed

    @property
    def generating(self) -> bool:
        """Whether its next row gives its next token and is not the prompt's."""
        return self.length - self.computed == 1 and self.length > self.n_prompt

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether rows of its prompt are still to be scored; then no page may be skipped."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs_done) < self.n_prompt

    @property
    def shareable_pages(self) -> int:
        """Full pages that may come from the cache: the last token is always computed."""
        return (self.length - 1) // self._page_size

    def key(self, page: int) -> bytes:
        """Return the name of its page number `page`, which its tokens fill."""
        keys, size = self._keys, self._page_size
        while len(keys) <= page + 1:
            start = (len(keys) - 1) * size
            keys.append(chain_key(keys[-1], self.tokens[start : start + size].tobytes()))
        return keys[page + 1]

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.tokens[self.length] = token
        self.length += 1

    def drop_pages(self) -> list[int]:
        """Forget all KV and return the pages that held it."""
        pages, self.pages = self.pages, []
        self.computed = self.published = 0
        return pages

    def report(self, processed: int, now: float) -> ProgressEvent | None:
        """Return the news that `processed` prompt tokens are read; None if it is no news.

        A prompt that is read anew, after preemption, gives no report twice.
        """
        if processed <= self.reported:
            return None
        if self.reported < 0:
            self._reported_cached = processed
        self.reported = processed
        ms = self.timings(now).prompt_ms
        return ProgressEvent(self.choice, self._reported_cached, processed, ms)

    def mark_started(self, now: float) -> None:
        """Note that it runs for the first time."""
        if self._started is None:
            self._started = now

    def mark_prompt_done(self, now: float) -> None:
        """Note that its prompt is computed."""
        if self._prompt_done is None:
            self._prompt_done = now

    @property
    def started(self) -> bool:
        """Whether it ever ran."""
        return self._started is not None

    def timings(self, now: float) -> Timings:
        """Return where its time went until `now`."""
        started = now if self._started is None else self._started
        done = now if self._prompt_done is None else self._prompt_done
        computed = 0 if self._started is None else self.n_prompt - self.cached
        return Timings(
            queue_ms=(started - self.submitted) * 1e3,
            prompt_ms=(done - started) * 1e3,
            prompt_n=computed,
            cache_n=self.cached,
            predicted_ms=(now - done) * 1e3,
            predicted_n=self.generated,
        )
