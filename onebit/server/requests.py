"""Request bodies of the API, as pydantic models."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from onebit.server.fields import RequestModel
from onebit.server.messages import Message, Tool

Prompt = str | list[int | str]
"""One prompt: text, token ids, or a mix of both."""

MAX_STOPS = 64
MAX_STOP_CHARS = 256
MAX_PROMPTS = 2048


def _prompts(value: Any) -> list[Prompt]:
    """Return the prompts in any of the forms that the API takes."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("expected text, token ids, or a list of either")
    if not value:
        raise ValueError("the list is empty; send at least one token or text")
    if len(value) > MAX_PROMPTS and not all(type(item) is int for item in value):
        raise ValueError(f"there are {len(value)} prompts; send at most {MAX_PROMPTS} at once")
    if all(isinstance(item, str) for item in value) or all(isinstance(i, list) for i in value):
        return [item if isinstance(item, str) else _mixed(item) for item in value]
    if any(isinstance(item, list) for item in value) and not any(type(i) is int for i in value):
        return [item if isinstance(item, str) else _mixed(item) for item in value]
    return [_mixed(value)]


def _mixed(items: Any) -> list[int | str]:
    if not isinstance(items, list):
        raise ValueError(f"{items!r:.40} is neither text nor a list of token ids")
    if not items:
        raise ValueError("a prompt is empty; send at least one token")
    for item in items:
        if type(item) is not int and not isinstance(item, str):
            raise ValueError(f"{item!r:.40} is no token id")
    return items


def _count(value: Any) -> Any:
    """Return `true` and `false` as the counts 1 and 0, which some clients mean by them."""
    return int(value) if isinstance(value, bool) else value


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise ValueError("expected text or a list of texts")
    if any(not s for s in stops):
        raise ValueError("a stop text is empty")
    if len(stops) > MAX_STOPS or any(len(s) > MAX_STOP_CHARS for s in stops):
        raise ValueError(f"at most {MAX_STOPS} stop texts of {MAX_STOP_CHARS} characters")
    return stops


def _bias(value: Any) -> list[tuple[int | str, float]]:
    """Return logit biases from an object or from pairs; `false` bans."""
    if isinstance(value, dict):
        pairs: list[Any] = [[_token_id(key), bias] for key, bias in value.items()]
    elif isinstance(value, list):
        pairs = value
    else:
        raise ValueError("expected an object of token ids to numbers, or a list of pairs")
    made: list[tuple[int | str, float]] = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{pair!r:.40} is no pair of token and bias")
        token, bias = pair
        if type(token) is not int and not isinstance(token, str):
            raise ValueError(f"{token!r:.40} is neither a token id nor text")
        if bias is False:
            bias = -100.0
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias {bias!r:.40} is no number from -100 to 100")
        made.append((token, float(bias)))
    return made


def _tool_choice(value: Any) -> str:
    """Return `none`, `auto`, `required` or `=NAME` for one function."""
    if value in ("none", "auto", "required"):
        return str(value)
    if isinstance(value, dict) and value.get("type", "function") == "function":
        named = value.get("function", value)
        if isinstance(named, dict) and isinstance(named.get("name"), str):
            return f"={named['name']}"
    raise ValueError('expected "none", "auto", "required" or a function by name')


def _token_id(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise ValueError(f'"{key[:40]}" is no token id') from None


Prompts = Annotated[
    list[Prompt],
    BeforeValidator(_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                {"type": "array", "minItems": 1, "items": {"type": "string"}},
            ]
        }
    ),
]
Stops = Annotated[
    list[str],
    BeforeValidator(_stops),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]
Bias = Annotated[
    list[tuple[int | str, float]],
    BeforeValidator(_bias),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]

ToolChoice = Annotated[
    str,
    BeforeValidator(_tool_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                            "required": ["name"],
                        },
                    },
                    "required": ["type", "function"],
                },
            ]
        }
    ),
]


class StreamOptions(RequestModel):
    """`stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ResponseFormat(RequestModel):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None
    format_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class Sampling(RequestModel):
    """Fields that every generating route shares."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: Stops = Field(default=[])
    stop_token_ids: list[int] = Field(default=[])
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    repeat_penalty: float | None = Field(default=None, gt=0, le=10)
    logit_bias: Bias = Field(default=[])
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0)
    cache_prompt: bool = True
    skip_special_tokens: bool = True
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    return_progress: bool = False
    timings_per_token: bool = False


class CompletionRequest(Sampling):
    """`POST /v1/completions`."""

    prompt: Prompts
    max_tokens: int | None = Field(default=None, ge=0)
    max_completion_tokens: int | None = Field(default=None, ge=0)
    n: int = Field(default=1, ge=1)
    best_of: int | None = Field(default=None, ge=1)
    echo: bool = False
    logprobs: Annotated[int, BeforeValidator(_count)] | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None


class ChatRequest(Sampling):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int = Field(default=1, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default={})
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class NativeRequest(Sampling):
    """`POST /completion`, llama-server's own form."""

    prompt: Prompts
    n_predict: int | None = Field(default=None, ge=-1)
    max_tokens: int | None = Field(default=None, ge=-1)
    max_completion_tokens: int | None = Field(default=None, ge=-1)
    n_probs: int = Field(default=0, ge=0, le=20)
    return_tokens: bool = False
    response_fields: list[str] | None = None

    accepted: ClassVar[frozenset[str]] = frozenset({"n_indent"})


class TokenizeRequest(RequestModel):
    """`POST /tokenize`: `content` as llama-server takes it, or `prompt` or `messages`."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: Literal[True] = True
    with_pieces: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default={})


class DetokenizeRequest(RequestModel):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[int]


class TemplateRequest(RequestModel):
    """`POST /apply-template`."""

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default={})
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
