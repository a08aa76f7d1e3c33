"""From a sequence's tokens to what the client sees: text, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from onebit.text.detokenize import Detokenizer
from onebit.text.reasoning import ReasoningSplitter
from onebit.text.stop import StopMatcher
from onebit.text.tools import ToolDelta, ToolParser


@dataclass(slots=True)
class Delta:
    """What one or more tokens added to an answer."""

    text: str = ""
    reasoning: str = ""
    tools: list[ToolDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.tools)


class OutputParser:
    """Runs the tokens of one sequence through detokeniser, stop strings, reasoning and tools.

    The joined deltas of a stream equal the one delta of a reply that was not streamed, because
    both come from here.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        reasoning: ReasoningSplitter | None = None,
        tools: ToolParser | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._stop = StopMatcher(stops)
        self._reasoning = reasoning
        self._tools = tools
        self.length = 0
        """Characters that the tokens so far completed, before anything was cut or moved."""
        self.kept = 0
        """Characters before the stop string, once `stopped` is set; otherwise those let through."""
        self.called = False
        """Whether a tool call was found."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stop.matched

    def push(self, token: int) -> Delta:
        """Return what `token` settles. Not to be called once `stopped` is set."""
        text = self._detokenizer.push(token)
        self.length += len(text)
        return self._after_stop(self._stop.push(text))

    def finish(self) -> Delta:
        """Return all that was held back; the answer is complete."""
        delta = Delta()
        if self.stopped is None:
            text = self._detokenizer.finish()
            self.length += len(text)
            delta = self._after_stop(self._stop.push(text))
            if self.stopped is None:
                _join(delta, self._after_stop(self._stop.finish()))
        if self._reasoning is not None:
            reasoning, answer = self._reasoning.finish()
            delta.reasoning += reasoning
            _join(delta, self._after_reasoning(answer))
        if self._tools is not None:
            content, calls = self._tools.finish()
            delta.text += content
            delta.tools += calls
            self.called |= bool(calls)
        return delta

    def _after_stop(self, text: str) -> Delta:
        self.kept += len(text)
        if not text:
            return Delta()
        if self._reasoning is None:
            return self._after_reasoning(text)
        reasoning, answer = self._reasoning.push(text)
        delta = self._after_reasoning(answer)
        delta.reasoning = reasoning
        return delta

    def _after_reasoning(self, text: str) -> Delta:
        if self._tools is None or not text:
            return Delta(text)
        content, calls = self._tools.push(text)
        self.called |= bool(calls)
        return Delta(content, "", calls)


def _join(delta: Delta, more: Delta) -> None:
    delta.text += more.text
    delta.reasoning += more.reasoning
    delta.tools += more.tools
