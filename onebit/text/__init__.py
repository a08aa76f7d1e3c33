"""Tokenizer, chat template, incremental detokenising, stop strings, reasoning and tool calls."""

from onebit.text.detokenize import Detokenizer
from onebit.text.model import TextModel, load_text
from onebit.text.output import Delta, OutputParser
from onebit.text.stop import StopMatcher
from onebit.text.template import ChatTemplate, TemplateError
from onebit.text.tools import TOOL_FORMATS, ToolDelta, ToolParser

__all__ = [
    "TOOL_FORMATS",
    "ChatTemplate",
    "Delta",
    "Detokenizer",
    "OutputParser",
    "StopMatcher",
    "TemplateError",
    "TextModel",
    "ToolDelta",
    "ToolParser",
    "load_text",
]
