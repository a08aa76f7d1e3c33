"""Chat messages and tools in requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

TEXT_JOIN = "\n"
"""Text parts of one message are joined by a line break."""

_KNOWN_EXTRA = frozenset({"annotations", "audio", "refusal", "function_call"})
"""Members of a reply's message that clients send back; none of them reaches the template."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class TextPart(_Part):
    """A part of a message's content: text, the one kind that a text model can read."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class FunctionCall(_Part):
    """The function of a tool call."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(_Part):
    """A call that an assistant's earlier message made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Function(_Part):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(_Part):
    """A tool offered to the model."""

    type: Literal["function"]
    function: Function


def _content_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if isinstance(value, list):
        return "<parts>"
    return "<null>" if value is None else None


Content = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[TextPart], Tag("<parts>")]
    | Annotated[None, Tag("<null>")],
    Discriminator(
        _content_kind,
        custom_error_type="content_type",
        custom_error_message="expected text or a list of parts",
    ),
]


class Message(_Part):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        said = self.content is not None or self.tool_calls or self.reasoning_content
        if not said and not (self.role == "assistant" and self._excused()):
            raise ValueError(f"a message of role {self.role} needs content")
        return self

    def _excused(self) -> bool:
        extra = self.__pydantic_extra__ or {}
        return bool(extra.get("refusal") or extra.get("function_call"))

    def text(self) -> str:
        """Return the content as one text."""
        if isinstance(self.content, list):
            return TEXT_JOIN.join(part.text for part in self.content)
        return self.content or ""

    def for_template(self) -> dict[str, Any]:
        """Return the message as templates read it."""
        made: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.text(),
        }
        if self.tool_calls:
            made["tool_calls"] = [
                call.model_dump(exclude_none=True, include={"id", "type", "function"})
                for call in self.tool_calls
            ]
        for key in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, key)) is not None:
                made[key] = value
        return made


def ignored_in(messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
    """Return the places of members that nothing reads."""
    found = [
        f"messages[{i}].{name}"
        for i, message in enumerate(messages)
        for name, value in (message.__pydantic_extra__ or {}).items()
        if value is not None and name not in _KNOWN_EXTRA
    ]
    found += [
        f"tools[{i}].function.{name}"
        for i, tool in enumerate(tools)
        for name, value in (tool.function.__pydantic_extra__ or {}).items()
        if value not in (None, False)
    ]
    return found
