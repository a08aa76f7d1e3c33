"""What a chat template tells of the model's output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """How the model writes what is not plain answer."""

    thinks: bool = False
    """Whether it writes <think> blocks."""
    tool_format: str | None = None
    """How it writes tool calls: a name known to `onebit.text`."""


PLAIN = Traits()


def template_traits(template: str) -> Traits:
    """Return the traits that the text of a chat template shows.

    The template, not the family, decides: fine-tunes of one family differ in both.
    """
    thinks = "<think>" in template or "</think>" in template
    if "<tool_call>" in template:
        return Traits(thinks, "hermes")
    if '"parameters":' in template and ("python_tag" in template or "ipython" in template):
        return Traits(thinks, "llama3_json")
    return Traits(thinks)
