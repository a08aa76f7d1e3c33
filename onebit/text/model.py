"""The text side of a model directory: tokenizer, chat template, output parsing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from onebit.plan import Plan
from onebit.text.detokenize import Detokenizer
from onebit.text.messages import CONTINUE_TAG, cut_at_tag, for_template
from onebit.text.output import OutputParser
from onebit.text.reasoning import OPEN, ReasoningSplitter
from onebit.text.template import ChatTemplate, TemplateError
from onebit.text.tokens import TokenBytes
from onebit.text.tools import TOOL_FORMATS, ToolParser


@dataclass(frozen=True)
class TextModel:
    """Encodes prompts, renders chats and parses answers of one model. Thread-safe."""

    tokenizer: Tokenizer
    tokens: TokenBytes
    vocab: int
    """Ids that may be produced: 0 .. vocab - 1."""
    bos: int | None
    eos: tuple[int, ...]
    add_bos: bool
    """Whether a raw prompt begins with `bos`."""
    template: ChatTemplate | None = None
    template_tokens: Mapping[str, str] = field(default_factory=dict)
    """Special tokens by the names that templates use: bos_token, eos_token, ..."""
    thinks: bool = False
    tool_format: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Sampling defaults of generation_config.json."""

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of a raw prompt.

        Special tokens written out in `text` become their ids. With `add_special`, `bos` is put
        in front when the model wants it, unless the text begins with it already: it is there
        once.
        """
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        if add_special and self.add_bos and self.bos is not None and ids[:1] != [self.bos]:
            return [self.bos, *ids]
        return ids

    def encode_chat(self, prompt: str) -> list[int]:
        """Return the ids of a rendered chat: nothing is added, the template has the say."""
        ids: list[int] = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        if self.bos is not None and ids[:2] == [self.bos, self.bos]:
            return ids[1:]
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of `ids`, special tokens left out unless asked for."""
        detokenizer = self.detokenizer(special=special)
        return "".join([detokenizer.push(i) for i in ids]) + detokenizer.finish()

    def detokenizer(self, *, special: bool = False) -> Detokenizer:
        """Return a fresh incremental detokeniser."""
        return Detokenizer(self.tokens, special=special)

    def knows(self, variable: str) -> bool:
        """Return whether the chat template reads `variable`."""
        return self.template is not None and variable in self.template.variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a chat.

        Args:
            messages: role, content (text) and whatever else the template reads.
            tools: function tools as the OpenAI API gives them.
            add_generation_prompt: end with the head of the assistant's turn.
            continue_final: end inside the last message, for the model to go on with it.
            extra: more template variables.

        Raises:
            TemplateError: there is no template, or it refused or failed.
        """
        if self.template is None:
            raise TemplateError("missing", "this model has no chat template")
        variables = {
            **self.template_tokens,
            **(extra or {}),
            "messages": for_template(messages, continue_final=continue_final),
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continue_final,
        }
        prompt = self.template.render(variables)
        if not continue_final:
            return prompt
        cut = cut_at_tag(prompt)
        if cut is None:
            raise TemplateError("failed", f"it lost the last message ({CONTINUE_TAG.strip()})")
        return cut

    def tool_parser(self, names: Collection[str]) -> ToolParser | None:
        """Return a parser of this model's tool calls; None when its format is not known."""
        return TOOL_FORMATS[self.tool_format](names) if self.tool_format else None

    def output_parser(
        self,
        *,
        stops: Sequence[str] = (),
        prompt: str | None = None,
        tools: ToolParser | None = None,
        special: bool = False,
    ) -> OutputParser:
        """Return the parser of one answer.

        Args:
            stops: stop strings.
            prompt: the rendered chat, which tells whether the answer starts inside a think
                block; None for raw completions, whose text is never split.
            tools: parser of tool calls, if tools were offered.
            special: let the text of special tokens through.
        """
        reasoning = None
        if self.thinks and prompt is not None:
            reasoning = ReasoningSplitter(inside=prompt.rstrip().endswith(OPEN))
        return OutputParser(self.detokenizer(special=special), stops, reasoning, tools)

    def close(self) -> None:
        """End the template's worker process."""
        if self.template is not None:
            self.template.close()


def load_text(directory: Path | str, plan: Plan) -> TextModel:
    """Load the tokenizer and the chat template of a model directory.

    Raises:
        InputError: a file is missing or broken, with all findings.
    """
    from onebit.text.load import load_text_files

    return load_text_files(Path(directory), plan)
