"""LiteLLM's proxy in front of a server: the `openai` client gets what it gets without."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from onebit.devices.null import NullScript, emit
from tests.api.conftest import Running, Serve, ids
from tests.clients.conftest import Environment
from tests.fixtures.child import free_port
from tests.fixtures.tiny_text import END

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

HELLO = NullScript(next_token=emit(ids("Hello there."), END))
CALL = '{"name":"get","arguments":{"city":"Köln"}}'
SCRIPTS = {
    "auto": NullScript(next_token=emit(ids(f"<tool_call>\n{CALL}\n</tool_call>"), END)),
    "required": NullScript(next_token=emit(ids(CALL), END)),  # what is around it is forced
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {"type": "function", "function": {"name": "get", "parameters": CITY}}
USER: Any = [{"role": "user", "content": "hi"}]
Proxy = Callable[[Running], openai.OpenAI]


@pytest.fixture(scope="module")
def proxy(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Start a proxy for a server and return a client of the proxy."""
    programs = environment("litellm", "litellm[proxy]", "llm")
    started: dict[str, tuple[subprocess.Popen[bytes], openai.OpenAI]] = {}

    def start(running: Running) -> openai.OpenAI:
        if running.url not in started:
            folder = tmp_path_factory.mktemp("litellm")
            started[running.url] = _start(programs, folder, running.url)
        return started[running.url][1]

    yield start
    for process, client in started.values():
        client.close()
        process.terminate()
        process.wait(30)


def _start(programs: Path, folder: Path, url: str) -> tuple[subprocess.Popen[bytes], openai.OpenAI]:
    port = free_port()
    target = {"model": "openai/T0", "api_base": f"{url}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": "mine", "litellm_params": target}]}
    (folder / "config.yaml").write_text(json.dumps(config))
    environ = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it looks for prices in the internet
    }
    arguments = ["--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [programs / "litellm", *arguments],
            cwd=folder,
            env={**os.environ, **environ},
            stdout=log,
            stderr=log,
        )
    own = f"http://127.0.0.1:{port}"
    for _ in range(240):
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        try:
            if httpx.get(f"{own}/health/liveliness", timeout=5).status_code == 200:
                break
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    client = openai.OpenAI(base_url=f"{own}/v1", api_key="any", max_retries=0, timeout=60)
    return process, client


def test_chat(serve: Serve, proxy: Proxy) -> None:
    client = proxy(serve(HELLO))
    assert [m.id for m in client.models.list().data] == ["mine"]
    made = client.chat.completions.create(model="mine", messages=USER, temperature=0)
    assert made.choices[0].message.content == "Hello there."
    assert made.choices[0].finish_reason == "stop"
    assert made.usage is not None
    assert made.usage.completion_tokens == 13
    chunks = list(
        client.chat.completions.create(
            model="mine",
            messages=USER,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    said = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(said) == "Hello there."
    usage = [c.usage for c in chunks if c.usage is not None]
    assert usage[-1].completion_tokens == 13


def test_completion(serve: Serve, proxy: Proxy) -> None:
    client = proxy(serve(HELLO))
    made = client.completions.create(model="mine", prompt="x", temperature=0, logprobs=1)
    assert made.choices[0].text == "Hello there."
    stream = client.completions.create(model="mine", prompt="x", temperature=0, stream=True)
    # LiteLLM leaves out the text of the last chunk.
    assert "".join(c.choices[0].text or "" for c in stream) == "Hello there."


def test_responses(serve: Serve, proxy: Proxy) -> None:
    client = proxy(serve(HELLO))
    made = client.responses.create(model="mine", input="x", temperature=0)
    assert made.output_text == "Hello there."
    events: list[Any] = list(
        client.responses.create(model="mine", input="x", temperature=0, stream=True)
    )
    assert events[-1].type == "response.completed"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        "Hello there."
    )


@pytest.mark.parametrize("choice", SCRIPTS)
def test_tool_calls(serve: Serve, proxy: Proxy, choice: Any) -> None:
    client = proxy(serve(SCRIPTS[choice], tool_format="hermes"))
    asked: dict[str, Any] = {"model": "mine", "messages": USER, "tools": [TOOL], "temperature": 0}
    made = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
    assert made.finish_reason == "tool_calls"
    (call,) = made.message.tool_calls
    assert call.function.name == "get"
    assert json.loads(call.function.arguments) == {"city": "Köln"}
    chunks = list(client.chat.completions.create(**asked, tool_choice=choice, stream=True))
    deltas = [d for c in chunks for d in c.choices[0].delta.tool_calls or []]
    assert deltas[0].function.name == "get"
    joined = "".join(d.function.arguments or "" for d in deltas)
    assert joined == call.function.arguments


def test_refusals_keep_their_kind(serve: Serve, proxy: Proxy) -> None:
    client = proxy(serve(HELLO, context=64))
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="mine", messages=USER, temperature=-1)
    long: Any = [{"role": "user", "content": "x" * 99}]
    with pytest.raises(openai.BadRequestError, match="ContextWindowExceeded"):
        client.chat.completions.create(model="mine", messages=long)
