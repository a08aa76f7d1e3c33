"""Chat templates: rendered as their makers do, in a process with limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onebit.text import ChatTemplate, TemplateError, TextModel, load_text
from tests.fixtures.tiny_text import BOS, tiny_plan, write_text_files


@pytest.fixture
def text(tmp_path: Path) -> Iterator[TextModel]:
    made = load_text(write_text_files(tmp_path), tiny_plan())
    yield made
    made.close()


def render(source: str, **variables: object) -> str:
    template = ChatTemplate(source)
    try:
        return template.render(variables)
    finally:
        template.close()


def refused(source: str, **variables: object) -> TemplateError:
    with pytest.raises(TemplateError) as raised:
        render(source, **variables)
    return raised.value


def test_blocks_are_trimmed(text: TextModel) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    prompt = text.render(chat)
    assert prompt == ("<s><|start|>system\ns<|end|><|start|>user\nu<|end|><|start|>assistant\n")


def test_indented_blocks_on_their_own_lines() -> None:
    source = "{{ b }}\n{% for x in xs %}\n    {% if x %}\n{{ x }}\n    {%- endif %}\n{% endfor %}\n"
    assert render(source, b="<s>", xs=["a", "", "c"]) == "<s>\nac"


def test_bos_is_there_once(text: TextModel) -> None:
    ids = text.encode_chat(text.render([{"role": "user", "content": "u"}]))
    assert ids.count(BOS) == 1
    assert ids[0] == BOS


def test_the_last_message_is_continued(text: TextModel) -> None:
    chat = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "The answer "}]
    prompt = text.render(chat, continue_final=True)
    assert prompt.endswith("assistant\nThe answer ")


def test_json_is_not_escaped_for_html() -> None:
    assert render("{{ x | tojson }}", x={"a": "<é'>"}) == '{"a": "<é\'>"}'
    assert render("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"


def test_loop_controls_and_generation_blocks() -> None:
    source = "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(source) == "012"
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


def test_a_templates_own_refusal() -> None:
    error = refused("{{ raise_exception('no system role') }}")
    assert (error.kind, error.message) == ("refused", "no system role")


def test_variables_are_known() -> None:
    template = ChatTemplate("{% if enable_thinking %}{{ tools }}{% endif %}{% set y = 1 %}{{ y }}")
    assert {"enable_thinking", "tools"} <= template.variables
    assert "y" not in template.variables
    template.close()


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ 10 ** 10 }}",
    ],
)
def test_walks_and_changes_are_refused(source: str) -> None:
    assert refused(source, messages=[]).kind in ("security", "failed")


@pytest.mark.parametrize("source", ["{% include '/etc/passwd' %}", "{% import 'x' as y %}"])
def test_files_cannot_be_reached(source: str) -> None:
    error = refused(source)
    assert error.kind == "failed"
    assert "root:" not in error.message


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% for a in range(99999) %}{{ 'y' * 99999 }}{% endfor %}",
    ],
)
def test_work_is_limited(source: str) -> None:
    template = ChatTemplate(source)
    begun = time.monotonic()
    with pytest.raises(TemplateError) as raised:
        template.render({})
    assert raised.value.kind in ("budget", "failed")
    assert time.monotonic() - begun < 2.0
    with pytest.raises(TemplateError):
        template.render({})
    template.close()


def test_a_template_works_again_after_one_that_did_not_end() -> None:
    template = ChatTemplate(
        "{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}ok"
    )
    with pytest.raises(TemplateError):
        template.render({"n": 99_999})
    assert template.render({"n": 3}) == "ok"
    template.close()


def test_a_dead_worker_is_started_again() -> None:
    template = ChatTemplate("{{ x }}")
    assert template._process is not None
    template._process.kill()
    template._process.wait()
    assert template.render({"x": "again"}) == "again"
    template.close()
    template.close()


def test_the_worker_ends_when_its_input_does() -> None:
    template = ChatTemplate("x")
    process = template._process
    assert process is not None
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    assert process.wait(5) == 0
    process.stdout.close()
    template._process = None


def test_large_prompts_pass(text: TextModel) -> None:
    long = "ab" * 300_000
    assert long in text.render([{"role": "user", "content": long}])
