"""The request of `POST /v1/responses`, and the chat that it means."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from onebit.server.errors import ApiError, bad_request, unsupported
from onebit.server.fields import RequestModel
from onebit.server.requests import ChatRequest, ToolChoice


class ResponsesRequest(RequestModel):
    """`POST /v1/responses`."""

    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stream: bool = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    text: dict[str, Any] = Field(default={})
    reasoning: dict[str, Any] = Field(default={})

    def as_chat(self) -> ChatRequest:
        """Return the chat that this request means.

        Raises:
            ApiError: 400 naming the field.
        """
        body: dict[str, Any] = {
            "messages": self._messages(),
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.get("effort"),
            "response_format": _format(self.text.get("format")),
            "tools": [_tool(i, tool) for i, tool in enumerate(self.tools or [])] or None,
        }
        try:
            chat = ChatRequest.read(body)
        except ApiError as error:
            if error.param is not None and error.param.startswith("messages"):
                error.param = "input" + error.param.removeprefix("messages")
                error.message = error.message.replace("messages", "input", 1)
            raise
        return chat.model_copy(update={"tool_choice": self.tool_choice})

    def _messages(self) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        if self.instructions:
            made.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*made, {"role": "user", "content": self.input}]
        for i, item in enumerate(self.input):
            self._item(i, item, made)
        return made

    def _item(self, index: int, item: dict[str, Any], made: list[dict[str, Any]]) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            made.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            call = {
                "id": item.get("call_id"),
                "type": "function",
                "function": {"name": item.get("name"), "arguments": item.get("arguments", "")},
            }
            if made and made[-1]["role"] == "assistant" and "tool_calls" in made[-1]:
                made[-1]["tool_calls"].append(call)
            else:
                made.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            made.append({"role": "tool", "content": text, "tool_call_id": item.get("call_id")})
        elif kind != "reasoning":
            raise unsupported(f"input[{index}].type", f"Items of type {kind!r} are not supported.")


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unsupported(f"tools[{index}].type", "Only tools of type function are supported.")
    keys = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {k: tool[k] for k in keys if tool.get(k) is not None}}


def _format(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad_request("text.format", "text.format is not an object.")
    if value.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {"schema": value.get("schema")}}
    return value
