"""What a chat's tools come to: what the template sees, what is forced, how calls are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onebit.server.errors import bad_request, unsupported
from onebit.server.grammar import ConstraintMaker
from onebit.server.messages import Tool
from onebit.server.requests import ChatRequest
from onebit.server.state import ServedModel, ServerState
from onebit.text import ToolParser
from onebit.text.tools import HermesParser


@dataclass(frozen=True)
class ToolUse:
    """The tools in play: what the template sees and how calls are read."""

    offered: list[dict[str, Any]] | None = None
    names: tuple[str, ...] = ()
    forced: ConstraintMaker | None = None
    prefix: str = ""
    """Text of the answer that is put into the prompt, for a call that has to be made."""


def tool_parser(served: ServedModel, tools: ToolUse) -> ToolParser | None:
    """Return a fresh parser of an answer's calls; None when no tools are in play."""
    if not tools.names:
        return None
    parser = served.text.tool_parser(tools.names)
    if parser is not None and tools.prefix:
        parser.push(tools.prefix)
    return parser


def tool_use(state: ServerState, served: ServedModel, request: ChatRequest) -> ToolUse:
    """Return what a chat's `tools` and `tool_choice` come to.

    Raises:
        ApiError: 400 naming the field.
    """
    choice = request.tool_choice or ("auto" if request.tools else "none")
    if not request.tools:
        if choice not in ("none", "auto"):
            raise bad_request("tool_choice", "tool_choice asks for a call, but there are no tools.")
        return ToolUse()
    if choice == "none":
        return ToolUse()
    if not served.text.knows("tools"):
        raise unsupported("tools", "This model's chat template takes no tools.")
    if served.text.tool_format is None:
        raise unsupported("tools", "The form of this model's tool calls is not known to onebit.")
    if not request.parallel_tool_calls:
        raise unsupported(
            "parallel_tool_calls", "parallel_tool_calls: false is not supported by this server."
        )
    offered = [tool.model_dump(exclude_none=True) for tool in request.tools]
    names = tuple(tool.function.name for tool in request.tools)
    if choice == "auto":
        return ToolUse(offered, names)
    return _forced(state, served, request.tools, offered, choice)


def _forced(
    state: ServerState, served: ServedModel, tools: list[Tool], offered: list[Any], choice: str
) -> ToolUse:
    """Return the tools with a call forced by a schema over name and arguments."""
    wanted = [t for t in tools if choice == "required" or t.function.name == choice[1:]]
    if not wanted:
        raise bad_request("tool_choice", "tool_choice names a function that is not in tools.")
    hermes = served.text.tool_format == "hermes"
    if not hermes and served.text.tool_format != "llama3_json":
        raise unsupported("tool_choice", "This model's tool calls cannot be forced; use auto.")
    key = "arguments" if hermes else "parameters"
    schema = {"anyOf": [_call_schema(tool, key) for tool in wanted]}
    assert state.grammar is not None
    forced = state.grammar.json_schema(schema, "tool_choice", skip_thinking=False)
    names = tuple(tool.function.name for tool in tools)
    return ToolUse(offered, names, forced, f"{HermesParser.opening}\n" if hermes else "")


def _call_schema(tool: Tool, key: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.function.name},
            key: tool.function.parameters or {"type": "object"},
        },
        "required": ["name", key],
        "additionalProperties": False,
    }
