"""Stop strings, reasoning and tool calls, cut into pieces in every way."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit.text import StopMatcher, ToolDelta
from onebit.text.reasoning import ReasoningSplitter
from onebit.text.tools import TOOL_FORMATS


def stopped(pieces: Sequence[str], stops: Sequence[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    out = ""
    for piece in pieces:
        out += matcher.push(piece)
        if matcher.matched is not None:
            return out, matcher.matched
    return out + matcher.finish(), None


class TestStop:
    def test_across_borders(self) -> None:
        assert stopped(["I like ", "app", "l", "es"], ["apples"]) == ("I like ", "apples")

    def test_a_beginning_that_goes_on_otherwise_is_given_out(self) -> None:
        assert stopped(["appl", "y"], ["apples"]) == ("apply", None)

    def test_no_part_leaks(self) -> None:
        matcher = StopMatcher(["###"])
        assert [matcher.push(p) for p in ["a#", "#", "b#", "##"]] == ["a", "", "##b", ""]

    def test_the_first_to_end_wins(self) -> None:
        assert stopped(["abcd"], ["abcd", "bc"]) == ("a", "bc")
        assert stopped(["abc"], ["c", "abc"]) == ("", "abc")

    @given(
        st.text("ab#", max_size=20),
        st.lists(st.text("ab#", min_size=1, max_size=4), max_size=3),
        st.data(),
    )
    def test_pieces_do_not_matter(self, text: str, stops: list[str], data: st.DataObject) -> None:
        whole = stopped([text], stops)
        assert stopped(list(text), stops) == whole
        cut = data.draw(st.integers(0, len(text)))
        assert stopped([text[:cut], text[cut:]], stops) == whole
        if whole[1] is not None:
            assert text.startswith(whole[0] + whole[1])
        assert not any(stop in whole[0] for stop in stops)


def split(pieces: Sequence[str], *, inside: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(inside=inside)
    made = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    return "".join(r for r, _ in made), "".join(a for _, a in made)


class TestReasoning:
    @pytest.mark.parametrize(
        ("text", "inside", "expected"),
        [
            ("<think>\nhm 1 < 2\n</think>\n\nFour.", False, ("hm 1 < 2", "Four.")),
            ("hm\n</think>\n\nFour.", True, ("hm", "Four.")),
            ("Four. <think>x</think>", False, ("", "Four. <think>x</think>")),
            (" <thin air", False, ("", " <thin air")),
            ("<think>\n\n</think>\n\nFour.", False, ("", "Four.")),
            ("<think>never done", False, ("never done", "")),
            ("  ", False, ("", "  ")),
            ("a </thin b", True, ("a </thin b", "")),
        ],
    )
    def test_split(self, text: str, inside: bool, expected: tuple[str, str]) -> None:
        assert split([text], inside=inside) == expected
        assert split(list(text), inside=inside) == expected


def calls(
    form: str, pieces: Sequence[str], names: Sequence[str] = ("get", "put")
) -> tuple[str, list[tuple[str, str]]]:
    parser = TOOL_FORMATS[form](names)
    content, deltas = "", list[ToolDelta]()
    for piece in pieces:
        more, found = parser.push(piece)
        content, deltas = content + more, deltas + found
    more, found = parser.finish()
    content, deltas = content + more, deltas + found
    made: dict[int, list[str]] = {}
    for delta in deltas:
        if delta.id is not None:
            assert delta.index == len(made)
            assert delta.name is not None
            made[delta.index] = [delta.name, ""]
        made[delta.index][1] += delta.arguments
    return content, [(name, arguments) for name, arguments in made.values()]


ONE = '<tool_call>\n{"name": "get", "arguments": {"a": "}{\\"", "b": [1, {"c": 2}]}}\n</tool_call>'


class TestHermes:
    @pytest.mark.parametrize(
        ("text", "content", "expected"),
        [
            (ONE, "", [("get", {"a": '}{"', "b": [1, {"c": 2}]})]),
            (f"Let me see.\n{ONE}\n{ONE}", "Let me see.", 2),
            (
                '<tool_call>{"arguments": {"x": 1}, "name": "put"}</tool_call>',
                "",
                [("put", {"x": 1})],
            ),
            ('<tool_call>{"name": "get", "arguments": {}}', "", [("get", {})]),
            ('<tool_call>{"name": "get"}</tool_call>', "", [("get", {})]),
            ("<tool_call>not json</tool_call>", "<tool_call>not json", []),
            ("1 < 2 <tool", "1 < 2 <tool", []),
            ("plain\n", "plain\n", []),
        ],
    )
    def test_calls(self, text: str, content: str, expected: list[tuple[str, object]] | int) -> None:
        for pieces in ([text], list(text)):
            said, found = calls("hermes", pieces)
            assert said == content
            if isinstance(expected, int):
                assert len(found) == expected
            else:
                assert [(n, json.loads(a)) for n, a in found] == expected

    def test_arguments_are_streamed(self) -> None:
        parser = TOOL_FORMATS["hermes"](["get"])
        _, first = parser.push('<tool_call>\n{"name": "get", "arguments": {"a"')
        assert [(d.name, d.arguments) for d in first] == [("get", ""), (None, '{"a"')]
        _, more = parser.push(': "long te')
        assert [(d.name, d.arguments) for d in more] == [(None, ': "long te')]

    def test_a_cut_call_gives_what_there_is(self) -> None:
        assert calls("hermes", ['<tool_call>{"name": "get", "arguments": {"a": 1']) == (
            "",
            [("get", '{"a": 1')],
        )


class TestWholeMessageFormats:
    @pytest.mark.parametrize(
        ("form", "text", "content", "expected"),
        [
            ("llama3_json", '{"name": "get", "parameters": {"a": 1}}', "", [("get", {"a": 1})]),
            (
                "llama3_json",
                '<|python_tag|>{"name": "get", "parameters": {}};{"name": "put", "parameters": {}}',
                "",
                [("get", {}), ("put", {})],
            ),
            ("llama3_json", '{"answer": 42}', '{"answer": 42}', []),
            ("llama3_json", '{"name": "else", "parameters": {}}', None, []),
            ("llama3_json", "Hi {x}", "Hi {x}", []),
            (
                "pythonic",
                "[get(a=1, b='x'), put()]",
                "",
                [("get", {"a": 1, "b": "x"}), ("put", {})],
            ),
            ("pythonic", "[1, 2]", "[1, 2]", []),
            ("pythonic", "[get(a=__import__('os'))]", "[get(a=__import__('os'))]", []),
            ("pythonic", "[get(", "[get(", []),
        ],
    )
    def test_calls(
        self, form: str, text: str, content: str | None, expected: list[tuple[str, object]]
    ) -> None:
        for pieces in ([text], list(text)):
            said, found = calls(form, pieces)
            assert said == (text if content is None else content)
            assert [(n, json.loads(a)) for n, a in found] == expected


@given(st.text('<tool_call>/{}":na me', max_size=60))
def test_hermes_loses_no_text_and_raises_nothing(text: str) -> None:
    said, found = calls("hermes", list(text))
    if "<tool_call>" not in text:
        assert said == text
        assert not found
