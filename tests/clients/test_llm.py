"""The `llm` tool, told of a server by extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from onebit.devices.null import NullScript, emit
from tests.api.conftest import Running, Serve, ids
from tests.clients.conftest import Environment
from tests.fixtures.tiny_text import END

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

HELLO = NullScript(next_token=emit(ids("Hello there."), END))
CALL = '<tool_call>\n{"name": "llm_version", "arguments": {}}\n</tool_call>'
CALLS = NullScript(next_token=emit(ids(CALL), END))
Llm = Callable[..., str]


@pytest.fixture
def llm(environment: Environment, tmp_path: Path) -> Llm:
    programs = environment("litellm", "litellm[proxy]", "llm")

    def run(running: Running, *arguments: str) -> str:
        own = {"model_name": "T0", "api_base": f"{running.url}/v1"}
        models = [
            {"model_id": "chat", "supports_tools": True, "supports_schema": True, **own},
            {"model_id": "completion", "completion": True, **own},
        ]
        (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
        done = subprocess.run(
            [programs / "llm", *arguments, "--key", "none"],
            env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
            input="",
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("model", ["chat", "completion"])
@pytest.mark.parametrize("how", [[], ["--no-stream"]])
def test_an_answer(serve: Serve, llm: Llm, model: str, how: list[str]) -> None:
    options = ["-o", "temperature", "0", "-o", "max_tokens", "20"]
    assert llm(serve(HELLO), "-m", model, *how, *options, "hi") == "Hello there.\n"


@pytest.mark.parametrize("how", [[], ["--no-stream"]])
def test_a_schema(serve: Serve, llm: Llm, how: list[str]) -> None:
    options = ["-o", "temperature", "0", "-o", "max_tokens", "200", "--schema", "ok bool"]
    s = serve(NullScript(next_token=emit(ids('{"ok":true}'), END)))
    assert json.loads(llm(s, "-m", "chat", *how, *options, "hi")) == {"ok": True}


@pytest.mark.parametrize("how", [[], ["--no-stream"]])
def test_a_tool(serve: Serve, llm: Llm, how: list[str]) -> None:
    """The tool runs and its result goes back; the script then calls again until llm gives up."""
    s = serve(CALLS, tool_format="hermes", fresh=True)
    more = ["-T", "llm_version", "--chain-limit", "2", "-o", "temperature", "0"]
    with pytest.raises(AssertionError, match=r"[Cc]hain limit"):
        llm(s, "-m", "chat", *how, *more, "hi")
    assert s.engine.stats().requests == 2
