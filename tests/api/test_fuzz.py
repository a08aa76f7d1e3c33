"""Any body gets an answer or a 4xx: never a 5xx, a traceback or a hang."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onebit.devices.null import NullScript, emit
from onebit.server.openapi import document
from onebit.server.requests import ChatRequest, CompletionRequest, NativeRequest
from onebit.server.responses_request import ResponsesRequest
from tests.api.conftest import Running, Serve, ids
from tests.fixtures.tiny_text import END

HELLO = NullScript(next_token=emit(ids("Hello there."), END))
USER = [{"role": "user", "content": "hi"}]
BASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "/v1/completions": (CompletionRequest, {"prompt": "x", "max_tokens": 3}),
    "/v1/chat/completions": (ChatRequest, {"messages": USER, "max_tokens": 3}),
    "/v1/responses": (ResponsesRequest, {"input": "x", "max_output_tokens": 3}),
    "/completion": (NativeRequest, {"prompt": "x", "n_predict": 3}),
}
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8).filter(lambda t: t.isprintable())
    | st.sampled_from(["auto", "required", "text", "json_object", "function", "user", "a", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "name", "function", "schema", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def check(s: Running, path: str, body: bytes | str) -> None:
    reply = s.http.post(path, content=body)
    assert reply.status_code < 500 or reply.status_code == 501, (body, reply.text)
    assert "Traceback" not in reply.text
    if reply.status_code >= 400:
        assert reply.json()["error"]["message"]


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_odd_fields(serve: Serve, data: st.DataObject) -> None:
    s = serve(HELLO)
    path = data.draw(st.sampled_from(sorted(BASES)))
    model, base = BASES[path]
    names = st.sampled_from([*model.model_fields, "tools", "foo"])
    more = data.draw(st.dictionaries(names, ODD, max_size=3))
    body = {**base, **more}
    for limit in ("max_tokens", "n_predict", "max_output_tokens", "max_completion_tokens"):
        if isinstance(body.get(limit), int) and body[limit] > 8:
            body[limit] = 8
    check(s, path, json.dumps(body))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_broken_bytes(serve: Serve, data: st.DataObject) -> None:
    s = serve(HELLO)
    path = data.draw(st.sampled_from(sorted(BASES)))
    body = bytearray(json.dumps(BASES[path][1]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    check(s, path, bytes(body))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand(serve: Serve) -> None:
    """Random fields with random values, at the speed of the wire."""
    s = serve(HELLO)
    rng = random.Random(7)
    values: list[Any] = [
        None, True, False, 0, -1, 1, 2, 7, 0.5, -0.5, 1e300, 2**63, "", "x", "\n", [], {}, [[]],
        [1], ["a"], [None], {"a": 1}, USER, [{"type": "function"}], {"type": "text"},
    ]  # fmt: skip
    for _ in range(10_000):
        path = rng.choice(sorted(BASES))
        model, base = BASES[path]
        body = dict(base)
        for _ in range(rng.randrange(1, 4)):
            body[rng.choice([*model.model_fields, "foo"])] = rng.choice(values)
        body = {k: v for k, v in body.items() if not (k == "ignore_eos" and v is True)}
        check(s, path, json.dumps(body))
    s.wait_idle()
    assert s.engine.stats().pages_used == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_openapi_document_is_kept(serve: Serve) -> None:
    """Schemathesis sends what the document allows and forbids; nothing ends in a 5xx."""
    import schemathesis

    s = serve(HELLO, context=256)
    served = s.http.get("/openapi.json").json()
    assert served == document()
    schema = schemathesis.openapi.from_dict(served)
    schema.config.update(base_url=s.url)
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def run(case: Any) -> None:
            reply = case.call()
            assert reply.status_code < 500 or reply.status_code == 501, reply.text

        run()
    counted = s.http.get("/metrics").text
    assert 'route="/v1/chat/completions",status="400"' in counted
    assert 'route="/v1/completions",status="200"' in counted
