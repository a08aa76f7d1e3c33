"""From a request's fields to what the engine takes."""

from __future__ import annotations

from typing import Any

from onebit.engine import SamplingParams
from onebit.server.errors import bad_request
from onebit.server.grammar import ConstraintMaker, GrammarMaker
from onebit.server.requests import ResponseFormat, Sampling
from onebit.server.state import ServedModel

_SMALLEST_TOP_P = 1e-9
"""Stands for top_p 0, which keeps the most likely token alone."""


def sampling_params(served: ServedModel, request: Sampling, logprobs: int | None) -> SamplingParams:
    """Return the sampling parameters: the request's, else the model's own, else neutral ones.

    Raises:
        ApiError: 400 naming the field.
    """
    defaults = served.text.defaults
    top_p = _first(request.top_p, defaults.get("top_p"), 1.0)
    return SamplingParams(
        temperature=float(_first(request.temperature, defaults.get("temperature"), 1.0)),
        top_k=max(0, int(_first(request.top_k, defaults.get("top_k"), 0))),
        top_p=float(top_p) or _SMALLEST_TOP_P,
        min_p=float(_first(request.min_p, defaults.get("min_p"), 0.0)),
        seed=request.seed,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=_repetition(request, defaults.get("repetition_penalty")),
        logit_bias=_bias(served, request),
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        logprobs=logprobs,
    )


def stop_ids(served: ServedModel, request: Sampling) -> frozenset[int]:
    """Return the request's own end tokens.

    Raises:
        ApiError: 400, an id is outside the vocabulary.
    """
    for token in request.stop_token_ids:
        if not 0 <= token < served.text.vocab:
            raise bad_request(
                "stop_token_ids",
                f"stop_token_ids holds {token}; token ids are 0 to {served.text.vocab - 1}.",
            )
    return frozenset(request.stop_token_ids)


def constraint(
    maker: GrammarMaker,
    request: Sampling,
    response_format: ResponseFormat | None,
    *,
    skip_thinking: bool,
) -> ConstraintMaker | None:
    """Return a maker of the constraint that the request asks for, if it asks for one.

    Raises:
        ApiError: 400, a schema or grammar is not valid, or there are two.
    """
    wanted = _schemas(request, response_format)
    if not wanted:
        return None
    if len(wanted) > 1:
        raise bad_request(
            wanted[1][0], f"{wanted[0][0]} and {wanted[1][0]} cannot be used together."
        )
    param, schema = wanted[0]
    if param == "grammar":
        return maker.lark(schema, param, skip_thinking=skip_thinking)
    return maker.json_schema(schema, param, skip_thinking=skip_thinking)


def _schemas(request: Sampling, response_format: ResponseFormat | None) -> list[tuple[str, Any]]:
    wanted: list[tuple[str, Any]] = []
    if request.grammar:
        wanted.append(("grammar", request.grammar))
    if request.json_schema not in (None, False):
        wanted.append(("json_schema", request.json_schema))
    if response_format is None or response_format.type == "text":
        return wanted
    if response_format.type == "json_object":
        wanted.append(("response_format", response_format.format_schema or True))
        return wanted
    named = response_format.json_schema
    schema = (named or {}).get("schema", response_format.format_schema)
    if not isinstance(schema, dict | bool):
        raise bad_request(
            "response_format.json_schema.schema",
            "response_format.json_schema.schema is required and must be an object.",
        )
    wanted.append(("response_format", schema))
    return wanted


def _repetition(request: Sampling, default: Any) -> float:
    both = (request.repetition_penalty, request.repeat_penalty)
    if None not in both and both[0] != both[1]:
        raise bad_request(
            "repeat_penalty", "repetition_penalty and repeat_penalty are the same; send one."
        )
    return float(_first(both[0], both[1], default, 1.0))


def _bias(served: ServedModel, request: Sampling) -> dict[int, float]:
    """Return biases by token id; a text means each of its tokens."""
    made: dict[int, float] = {}
    for token, bias in request.logit_bias:
        ids = served.text.encode(token, add_special=False) if isinstance(token, str) else [token]
        for i in ids:
            if not 0 <= i < served.text.vocab:
                raise bad_request(
                    "logit_bias",
                    f"logit_bias names token {i}; token ids are 0 to {served.text.vocab - 1}.",
                )
            made[i] = bias
    return made


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
