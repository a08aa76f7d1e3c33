"""The engine's own errors. Each is an OnebitError, so each carries a finding with its mend."""

from __future__ import annotations

from onebit.findings import InputError, OnebitError, Where, error


class QueueFull(OnebitError):
    """The engine holds as many sequences as it may; try again later.

    Attributes:
        retry_after: Seconds after which a place is likely to be free, at least 1.
    """

    retry_after: float

    def __init__(self, held: int, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(
            error(
                "engine.queue_full",
                f"the engine already holds {held} sequences, running and waiting",
                f"send the request again in {retry_after:.0f} s, or raise engine.queue",
            )
        )


class EngineStopped(OnebitError):
    """The engine takes no requests, or ended this one: it is draining, closed or broken."""

    def __init__(self, why: str) -> None:
        super().__init__(error("engine.stopped", why, "send the request to a running server"))


class PromptTooLong(InputError):
    """The prompt leaves no room in the context.

    Attributes:
        n_prompt: Tokens of the prompt.
        n_ctx: Tokens of the context, prompt and answer together.
    """

    n_prompt: int
    n_ctx: int

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx
        super().__init__(
            error(
                "engine.prompt_too_long",
                f"the prompt has {n_prompt} tokens, which exceeds the available context size of "
                f"{n_ctx} tokens (prompt and answer together)",
                "shorten the prompt, or serve with a larger ctx_size or engine.kv_memory",
                Where(field="prompt"),
            )
        )


class DeadlineExceeded(OnebitError):
    """The request was not finished within its deadline."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            error(
                "engine.deadline",
                f"the request was not finished within its deadline of {seconds:g} s",
                "ask for fewer tokens, or raise engine.deadline",
            )
        )


class ConstraintFailed(OnebitError):
    """A request's constraint raised an error or left no token to choose."""

    def __init__(self, why: str) -> None:
        super().__init__(
            error("engine.constraint", why, "simplify the grammar or schema of the request")
        )


def invalid(field: str, what: str, mend: str) -> InputError:
    """Return the error for a request field out of range; `field` is its name in the API."""
    return InputError(error("engine.bad_request", what, mend, Where(field=field)))
