"""One sequence's sampler: penalties, bias, bans and constraint around the draw."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from onebit.engine.draw import Peaks, Row, Workspace, draw, log_sum_exp, uniform
from onebit.engine.errors import ConstraintFailed
from onebit.engine.events import TokenLogprob
from onebit.engine.request import Constraint, SamplingParams
from onebit.findings import DeviceError, error

_NEVER = np.float32(-np.inf)
_BAN_BIAS = -100.0


class TokenCounts:
    """Which tokens the text holds and how often each was generated, as growing arrays."""

    def __init__(self, prompt: NDArray[np.int32]) -> None:
        seen = np.unique(prompt)
        self._size = int(seen.size)
        self._ids = np.empty(self._size + 64, np.int64)
        self._ids[: self._size] = seen
        self._counts = np.zeros(self._size + 64, np.float32)
        self._index = {int(token): i for i, token in enumerate(seen)}

    def add(self, token: int) -> None:
        """Count a generated token."""
        index = self._index.get(token)
        if index is None:
            index = self._size
            if index == self._ids.size:
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._index[token] = index
            self._ids[index] = token
            self._size += 1
        self._counts[index] += 1

    def penalise(self, row: Row, params: SamplingParams) -> None:
        """Apply the three penalties to a row in place."""
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        values = row[ids]
        repetition = np.float32(params.repetition_penalty)
        values = np.where(values > 0, values / repetition, values * repetition)
        values -= np.float32(params.frequency_penalty) * counts
        values -= np.float32(params.presence_penalty) * (counts > 0)
        row[ids] = values


class Sampler:
    """Chooses the tokens of one sequence.

    Args:
        params: How to choose.
        choice: Number of the choice in its request; choices of one seed draw differently.
        prompt: Token ids; only the repetition penalty looks at them.
        end_ids: End and stop tokens of the sequence, for `min_tokens`.
        eos: The model's end tokens, for `ignore_eos`.
        constraint: Rule for the next token, or None.
    """

    def __init__(
        self,
        params: SamplingParams,
        choice: int,
        prompt: NDArray[np.int32],
        end_ids: frozenset[int],
        eos: frozenset[int],
        constraint: Constraint | None,
    ) -> None:
        self._params = params
        self._choice = choice
        self._constraint = constraint
        self._greedy = params.temperature == 0.0 or params.top_k == 1
        self._seed = secrets.randbits(64) if params.seed is None else params.seed
        bias = params.logit_bias
        banned = params.banned | {t for t, b in bias.items() if b <= _BAN_BIAS}
        self._banned = _array(banned | eos if params.ignore_eos else banned)
        self._early = _array(end_ids if params.min_tokens else frozenset())
        added = {t: b for t, b in bias.items() if b > _BAN_BIAS}
        self._bias_ids = _array(frozenset(added))
        self._bias = np.array([added[int(t)] for t in self._bias_ids], np.float32)
        repeats = params.repetition_penalty != 1.0
        self._counts: TokenCounts | None = None
        if repeats or params.presence_penalty or params.frequency_penalty:
            self._counts = TokenCounts(prompt if repeats else prompt[:0])
        self._plain = not (
            self._counts
            or self._banned.size
            or self._early.size
            or self._bias_ids.size
            or constraint
        )
        self.takes_argmax = self._plain and self._greedy
        """Whether `choose` is the row's largest logit and nothing else."""

    def choose(self, row: Row, position: int, generated: int, workspace: Workspace) -> int:
        """Return the next token.

        Args:
            row: Raw logits; not changed.
            position: Position the token will have.
            generated: Tokens generated so far.
            workspace: Temporaries.

        Raises:
            DeviceError: the logits are not finite.
            ConstraintFailed: the constraint raised, or nothing is left to choose.
        """
        adjusted = row if self._plain else self._adjust(row, generated, workspace)
        if self._greedy:
            token = int(adjusted.argmax())
            self._require_choice(row, adjusted[token])
            return token
        params = self._params
        peaks = Peaks(adjusted)
        self._require_choice(row, peaks.top)
        return draw(
            peaks,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            uniform(self._seed, self._choice, position),
            workspace,
        )

    def accept(self, token: int) -> None:
        """Take note of the chosen token.

        Raises:
            ConstraintFailed: the constraint raised.
        """
        if self._counts is not None:
            self._counts.add(token)
        if self._constraint is not None:
            try:
                self._constraint.accept(token)
            except Exception as problem:
                raise ConstraintFailed(f"the constraint refused token {token}") from problem

    def _require_choice(self, row: Row, largest: np.float32) -> None:
        """Check the largest adjusted logit: some token has to be left, and a sound one."""
        if largest == _NEVER and not self._plain and row.max() > _NEVER:
            raise ConstraintFailed("every token is banned by logit_bias, bans or the constraint")
        require_finite(largest)

    def _adjust(self, row: Row, generated: int, workspace: Workspace) -> Row:
        adjusted = workspace.adjusted
        np.copyto(adjusted, row)
        if self._counts is not None:
            self._counts.penalise(adjusted, self._params)
        adjusted[self._bias_ids] += self._bias
        adjusted[self._banned] = _NEVER
        if generated < self._params.min_tokens:
            adjusted[self._early] = _NEVER
        if self._constraint is not None:
            self._mask(adjusted, self._constraint)
        return adjusted

    def _mask(self, adjusted: Row, constraint: Constraint) -> None:
        try:
            allowed = constraint.allowed()
            if allowed is not None:
                np.copyto(adjusted, _NEVER, where=~allowed)
        except Exception as problem:
            raise ConstraintFailed("the constraint failed to say what may come next") from problem


def require_finite(largest: np.float32) -> None:
    """Check the largest logit of a row; argmax finds a NaN if there is one.

    Raises:
        DeviceError: it is NaN or infinite.
    """
    if not np.isfinite(largest):
        raise DeviceError(
            error(
                "engine.logits_not_finite",
                f"the device returned a logit of {largest}, so no token can be chosen",
                "check the container with `onebit validate`, or serve on another device",
            )
        )


def logprob_of(row: Row, token: int, top: int, workspace: Workspace) -> TokenLogprob:
    """Return log-softmax(row) of `token` and of the `top` best tokens.

    Raises:
        DeviceError: the logits are not finite.
    """
    peaks = Peaks(row)
    require_finite(peaks.top)
    total = log_sum_exp(peaks, workspace)
    ids = peaks.best(top) if top else ()
    alternatives = tuple((int(i), float(row[i]) - total) for i in ids)
    return TokenLogprob(token, float(row[token]) - total, alternatives)


def _array(ids: frozenset[int]) -> NDArray[np.int64]:
    return np.array(sorted(ids), np.int64)
