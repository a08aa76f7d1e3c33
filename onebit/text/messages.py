"""Chat messages as templates expect them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

CONTINUE_TAG = "\u2063onebit:continue-here\u2063"
"""Marks the end of the last message while rendering, to cut the prompt there."""


def for_template(
    messages: Sequence[Mapping[str, Any]], *, continue_final: bool = False
) -> list[dict[str, Any]]:
    """Return `messages` in the form that chat templates are written for.

    Content is text, never null. The arguments of earlier tool calls, JSON text in the API, are
    objects. With `continue_final`, the last message ends in `CONTINUE_TAG`.
    """
    out = []
    for message in messages:
        made = dict(message)
        made["content"] = made.get("content") or ""
        if made.get("tool_calls"):
            made["tool_calls"] = [_with_object_arguments(call) for call in made["tool_calls"]]
        out.append(made)
    if continue_final and out:
        out[-1]["content"] = out[-1]["content"] + CONTINUE_TAG
    return out


def cut_at_tag(prompt: str) -> str | None:
    """Return `prompt` up to `CONTINUE_TAG`; None when the tag is not there."""
    at = prompt.rfind(CONTINUE_TAG)
    return None if at < 0 else prompt[:at]


def _with_object_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(call)
    function = dict(made.get("function") or {})
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError:
            return made  # the model wrote it so; the template shows it as it is
    made["function"] = function
    return made
