"""The policy on request fields: honoured, accepted, refused by name, or reported as ignored."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from onebit.server.errors import ApiError, bad_request, unsupported

NO_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "id_slot",
        "keep_alive",
        "include",
        "background",
        "truncation",
    }
)
"""Fields that cannot change an answer: accepted everywhere."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "conversation": (),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora": ([],),
    "max_tool_calls": (),
    "mirostat": (0,),
    "modalities": (["text"],),
    "n_keep": (0,),
    "n_predict": (-1,),
    "post_sampling_probs": (False,),
    "previous_response_id": (),
    "prompt_template": (),
    "samplers": (),
    "suffix": ("",),
    "t_max_predict_ms": (0,),
    "tfs_z": (1,),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""Known fields that are not supported, each with the values that ask for nothing."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9_.\-\[\]]{1,64}")
_MOST_NAMES = 32


class RequestModel(BaseModel):
    """Base of the request bodies: strict types, unknown fields kept aside."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)

    accepted: ClassVar[frozenset[str]] = frozenset()
    """More fields of this route that are accepted without effect."""

    @classmethod
    def read(cls, value: dict[str, Any]) -> Self:
        """Check a body; null counts as absent.

        Raises:
            ApiError: 400 naming the field.
        """
        present = {key: item for key, item in value.items() if item is not None}
        try:
            made = cls.model_validate(present)
        except ValidationError as error:
            raise _from_pydantic(error) from None
        made._refuse_known()
        return made

    def ignored(self) -> list[str]:
        """Return the names of fields that have no meaning here."""
        extra = self.__pydantic_extra__ or {}
        return [
            name
            for name in extra
            if name not in NO_EFFECT and name not in self.accepted and name not in NEUTRAL
        ]

    def _refuse_known(self) -> None:
        for name, value in (self.__pydantic_extra__ or {}).items():
            neutral = NEUTRAL.get(name)
            if neutral is not None and value not in neutral:
                raise unsupported(name, f"{name} is not supported by this server.")


def ignored_header(names: list[str], *, strict: bool) -> dict[str, str]:
    """Return the reply header that names ignored fields.

    Raises:
        ApiError: 400, when requests are strict and there is one.
    """
    if not names:
        return {}
    if strict:
        shown = names[0] if _SAFE_NAME.fullmatch(names[0]) else None
        raise ApiError(
            400,
            f"Unknown field{f' {shown}' if shown else ''}: this server takes strict requests "
            "(api.strict_requests).",
            shown,
            "unknown_parameter",
        )
    safe = [n if _SAFE_NAME.fullmatch(n) else "?" for n in names[:_MOST_NAMES]]
    return {"x-onebit-ignored": ", ".join(dict.fromkeys(safe))}


def _from_pydantic(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    param = param_of(first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return bad_request(param, f"{param} is required.", "missing_required_parameter")
    shown = _shown(first["input"])
    return bad_request(param, f"{param} is {shown}: {message}.")


def param_of(loc: tuple[int | str, ...]) -> str:
    """Return a place in a body as `messages[0].content`; parts in <> are pydantic's own."""
    out = ""
    for part in loc:
        if isinstance(part, int):
            out += f"[{part}]"
        elif not part.startswith("<"):
            out += f".{part}" if out else part
    return out or "body"


def _shown(value: Any) -> str:
    """Return a short, safe form of a value for a message."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an empty array" if not value else "an array"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
