"""Every honoured cell of the ledger has an effect: field x route x device.

The refused cells are proved in tests/unit/config/test_config_ledger.py; here the honoured ones
are enumerated from the ledger itself, so that a new cell without a proof fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from route_support import KERNELS, NPU, Machine, config

import onebit.convert
from onebit.cli.logs import set_up_logs
from onebit.cli.port import bind, check_public
from onebit.config import DEVICES, LoadedConfig
from onebit.config.ledger import is_honoured
from onebit.config.logging import LoggingConfig
from onebit.config.walk import leaves
from onebit.devices.null import open_null
from onebit.engine import Engine
from onebit.findings import Refusal
from onebit.manifest import inspect_directory
from onebit.routes import Resolution, Session, resolve
from onebit.routes.addons import AddonModel, InstalledAddon
from onebit.server import ServedModel, ServerState, create_app
from onebit.server.serve import make_server

SERVER_LEVEL = ("host", "port", "api.", "shutdown.", "logging.")
"""Settings of what stands above every device: proved once for each route."""


class Recorder:
    """A private add-on that records what it is given."""

    name = "recorder"
    model_types = ("llama",)
    optional = False
    honours = ("threads",)

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def decline(self, directory: Path, config: Any) -> None:
        return None

    def check(self, options: Any) -> list[str]:
        return []

    def open(self, directory: Path, options: Any, settings: Any, program: Any) -> AddonModel:
        self.calls.append({"options": options, "settings": settings, "program": program})
        plan = inspect_directory(directory).plan
        assert plan is not None
        return AddonModel(plan, open_null(plan.vocab, program))


@dataclass
class Case:
    """One route on one device, with everything in place that it needs."""

    route: str
    device: str | None
    machine: Machine
    model: Path
    tmp: Path
    addon: Recorder

    def config(self, **settings: Any) -> LoadedConfig:
        asked: dict[str, Any] = {} if self.device is None else {"device": self.device}
        return config(self.model, **{**asked, **settings})

    def resolve(self, **settings: Any) -> Resolution:
        return resolve(self.config(**settings), self.machine.world())

    def open(self, **settings: Any) -> Session:
        return self.resolve(**settings).open(lambda doing, done, total: None)

    def opened(self, **settings: Any) -> Any:
        """Return what the device (or the add-on) was opened with."""
        self.open(**settings).close()
        if self.route == "private":
            return self.addon.calls[-1]["program"]
        return self.machine.opened[-1]

    def options(self, **settings: Any) -> Any:
        """Return the `ProgramOptions` that reached the device."""
        found = self.opened(**settings)
        return found if self.route == "private" else found.options


@pytest.fixture
def case(
    request: pytest.FixtureRequest, tiny: Path, tmp_path: Path, machine: Machine,
    tiny_source: Path, monkeypatch: pytest.MonkeyPatch,
) -> Case:  # fmt: skip
    route, device = request.param
    machine.npu, machine.kernels = NPU, KERNELS
    machine.environ = {"ONEBIT_CACHE_DIR": str(tmp_path / "cache")}
    addon, model = Recorder(), tiny
    if route == "private":
        machine.addons = [InstalledAddon("recorder", "recorder", addon)]
    if route == "fast-lane":
        (tiny / "npu").mkdir()
        for name in ("layer_ctx1.elf", "lmhead.elf", "layer.pdi"):
            (tiny / "npu" / name).write_bytes(b"\x7fELF")
    if route == "gguf":
        model = tmp_path / "tiny.gguf"
        model.write_bytes(b"GGUF" + bytes(64))
        monkeypatch.setattr(onebit.convert, "check_gguf", lambda source: None)
        monkeypatch.setattr(
            onebit.convert,
            "convert_gguf",
            lambda source, target, **_: shutil.copytree(tiny_source, target),
        )
    return Case(route, device, machine, model, tmp_path, addon)


# -- one proof for each setting ----------------------------------------------------------------


def _model(case: Case) -> None:
    other = case.model.rename(case.model.with_name(f"other{case.model.suffix}"))
    case.model = other
    if case.route == "fast-lane":
        with pytest.raises(Refusal) as caught:
            case.resolve()
        assert caught.value.findings[0].where.file == str(other / "npu")
    else:
        assert case.resolve().name == "other"


def _alias(case: Case) -> None:
    assert case.resolve().name != "mine"
    assert case.resolve(alias="mine").name == "mine"


def _route(case: Case) -> None:
    if case.route == "fast-lane":
        with pytest.raises(Refusal, match="no runtime for whole-layer kernels"):
            case.resolve(route="fast-lane")
        return
    forced = case.resolve(route=case.route)
    assert forced.route == case.route
    others = [trial for trial in forced.trials if trial.route != case.route]
    assert all(trial.why.startswith("not tried") for trial in others)


def _device(case: Case) -> None:
    with closing(case.open(device=case.device)) as session:
        assert session.resolution.device.device == case.device
        assert session.resolution.device.asked == case.device
    assert case.machine.opened[-1].device == case.device


def _kernels(case: Case) -> None:
    case.opened(kernels="/my/kernels")
    assert case.machine.searches[-1][1] == Path("/my/kernels")


def _host(case: Case) -> None:
    with closing(bind(case.config(host="127.0.0.2", port=0))) as sock:
        assert sock.getsockname()[0] == "127.0.0.2"


def _port(case: Case) -> None:
    with closing(bind(case.config(port=0))) as sock:
        free = sock.getsockname()[1]
    with closing(bind(case.config(port=free))) as sock:
        assert sock.getsockname() == ("127.0.0.1", free)


def _ctx_size(case: Case) -> None:
    assert case.options().context == 256
    assert case.options(ctx_size=128).context == 128


def _threads(case: Case) -> None:
    assert case.options(threads=3).threads == 3


def _numerics(case: Case) -> None:
    value = {"cpu": "i8", "npu": "int8-npu", "reference": "f32"}[str(case.device)]
    assert case.options().numerics == "auto"
    assert case.options(numerics=value).numerics == value


def _streams(case: Case) -> None:
    with closing(case.open(npu__streams=2)) as session:
        assert session.facts["npu_streams"] == 2
    assert case.machine.opened[-1].npu.streams == 2


def _npu_options(case: Case) -> None:
    case.open(npu__options={"KEY": "value"}).close()
    assert case.addon.calls[-1]["options"] == {"KEY": "value"}


def _gemm(case: Case) -> None:
    found = case.opened(npu__gemm="host")
    assert found.npu.gemm == "host"
    assert "npu" not in case.machine.asked  # no device is looked at


def _npu_seconds(name: str) -> Callable[[Case], None]:
    def proof(case: Case) -> None:
        assert getattr(case.opened(**{f"npu__{name}": 7}).npu, name) == 7

    return proof


def _kv_memory(case: Case) -> None:
    assert case.options(engine__kv_memory=1 << 20).pages == (1 << 20) // (32 * 2048)


def _kv_dtype(case: Case) -> None:
    assert case.options(engine__kv_dtype="bf16").kv_dtype == "bf16"
    half = case.options(engine__kv_dtype="bf16", engine__kv_memory=1 << 20).pages
    assert half == 2 * case.options(engine__kv_memory=1 << 20).pages


def _limit(name: str, value: Any) -> Callable[[Case], None]:
    def proof(case: Case) -> None:
        with closing(case.open()) as session:
            assert getattr(session.limits, name) != value
        with closing(case.open(**{f"engine__{name}": value})) as session:
            assert getattr(session.limits, name) == value

    return proof


def _prefill_chunk(case: Case) -> None:
    _limit("prefill_chunk", 64)(case)
    assert case.options(engine__prefill_chunk=64).max_rows < case.options().max_rows


def ask(case: Case, settings: dict[str, Any], **request: Any) -> httpx.Response:
    """Answer one request with the API as configured, on what the route opened."""
    session = case.open(**settings)
    engine = Engine(session.program, session.limits, eos=session.plan.tokens.eos)
    engine.start()
    state = ServerState()
    state.set_served(ServedModel("tiny", session.plan, session.text, engine, facts=session.facts))
    app = create_app(state, case.config(**settings).config.api)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(**{"method": "POST", "url": "/v1/completions", **request})

    try:
        return asyncio.run(send())
    finally:
        engine.close()
        session.close()
        state.close()


BODY: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "max_tokens": 1}


def _keys(case: Case) -> None:
    settings = {"api__keys": ["k1"]}
    assert ask(case, {}, json=BODY).status_code == 200
    assert ask(case, settings, json=BODY).status_code == 401
    header = {"authorization": "Bearer k1"}
    assert ask(case, settings, json=BODY, headers=header).status_code == 200


def _keys_file(case: Case) -> None:
    path = case.tmp / "keys"
    path.write_text("# keys\nk2\n")
    settings = {"api__keys_file": str(path)}
    assert ask(case, settings, json=BODY).status_code == 401
    header = {"authorization": "Bearer k2"}
    assert ask(case, settings, json=BODY, headers=header).status_code == 200


def _public(case: Case) -> None:
    loaded = case.config(host="0.0.0.0", port=0)
    with closing(bind(loaded)) as sock:
        with pytest.raises(Refusal, match=r"api\.public_without_key: true"):
            check_public(loaded, sock)
        check_public(case.config(host="0.0.0.0", api__public_without_key=True), sock)
        check_public(case.config(host="0.0.0.0", api__keys=["k"]), sock)


def _cors(case: Case) -> None:
    origin = "https://a.example"
    request = {"json": BODY, "headers": {"origin": origin}}
    assert "access-control-allow-origin" not in ask(case, {}, **request).headers
    reply = ask(case, {"api__cors_origins": [origin]}, **request)
    assert reply.headers["access-control-allow-origin"] == origin


def _max_body(case: Case) -> None:
    body = {**BODY, "user": "x" * 5000}
    assert ask(case, {}, json=body).status_code == 200
    assert ask(case, {"api__max_body": 4096}, json=body).status_code == 413


def _mismatch(case: Case) -> None:
    body = {**BODY, "model": "another"}
    assert ask(case, {}, json=body).status_code == 404
    assert ask(case, {"api__model_mismatch": "accept"}, json=body).status_code == 200


def _strict(case: Case) -> None:
    body = {**BODY, "unheard_of": 1}
    assert ask(case, {}, json=body).status_code == 200
    assert ask(case, {"api__strict_requests": True}, json=body).status_code == 400


def _route_switch(name: str) -> Callable[[Case], None]:
    def check(case: Case) -> None:
        assert ask(case, {}, method="GET", url=f"/{name}").status_code == 200
        reply = ask(case, {f"api__{name}": False}, method="GET", url=f"/{name}")
        assert reply.status_code == 501
        assert f"api.{name}" in reply.json()["error"]["message"]

    return check


def _body_timeout(case: Case) -> None:
    async def slow() -> Any:
        yield json.dumps(BODY).encode()[:5]
        await asyncio.sleep(0.6)
        yield json.dumps(BODY).encode()[5:]

    assert ask(case, {}, content=slow()).status_code == 200
    assert ask(case, {"api__body_timeout": 0.1}, content=slow()).status_code == 408


def _idle_timeout(case: Case) -> None:
    server = make_server(ServerState(), case.config(api__idle_timeout=3).config)
    assert server.config.timeout_keep_alive == 3


def _grace(case: Case) -> None:
    assert make_server(ServerState(), case.config(shutdown__grace=1).config).grace == 1


@pytest.fixture(autouse=True)
def _restore_logs() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("onebit")
    before = (root.handlers, root.level, ours.level)
    yield
    root.handlers, root.level, ours.level = before


def _level(case: Case) -> None:
    set_up_logs(case.config(logging__level="error").config.logging)
    assert not logging.getLogger("onebit.server").isEnabledFor(logging.WARNING)
    set_up_logs(case.config(logging__level="debug").config.logging)
    assert logging.getLogger("onebit.server").isEnabledFor(logging.DEBUG)


def _format(case: Case) -> None:
    record = logging.makeLogRecord({"msg": "hello %s", "args": ("you",), "name": "onebit.x"})

    def line(logs: LoggingConfig) -> str:
        set_up_logs(logs)
        return logging.getLogger().handlers[0].format(record)

    assert line(case.config().config.logging).endswith("onebit.x: hello you")
    assert json.loads(line(case.config(logging__format="json").config.logging))["message"] == (
        "hello you"
    )


PROOFS: dict[str, Callable[[Case], None]] = {
    "model": _model,
    "alias": _alias,
    "route": _route,
    "device": _device,
    "kernels": _kernels,
    "host": _host,
    "port": _port,
    "ctx_size": _ctx_size,
    "threads": _threads,
    "numerics": _numerics,
    "npu.streams": _streams,
    "npu.options": _npu_options,
    "npu.gemm": _gemm,
    "npu.lock_timeout": _npu_seconds("lock_timeout"),
    "npu.launch_timeout": _npu_seconds("launch_timeout"),
    "engine.kv_memory": _kv_memory,
    "engine.kv_dtype": _kv_dtype,
    "engine.max_sequences": _limit("max_sequences", 3),
    "engine.queue": _limit("queue", 5),
    "engine.prefill_chunk": _prefill_chunk,
    "engine.prefix_cache": _limit("prefix_cache", False),
    "engine.deadline": _limit("deadline", 9),
    "api.keys": _keys,
    "api.keys_file": _keys_file,
    "api.public_without_key": _public,
    "api.cors_origins": _cors,
    "api.max_body": _max_body,
    "api.model_mismatch": _mismatch,
    "api.strict_requests": _strict,
    "api.slots": _route_switch("slots"),
    "api.metrics": _route_switch("metrics"),
    "api.body_timeout": _body_timeout,
    "api.idle_timeout": _idle_timeout,
    "shutdown.grace": _grace,
    "logging.level": _level,
    "logging.format": _format,
}


def _cells() -> Iterator[tuple[str, tuple[str, str | None]]]:
    for leaf in leaves():
        for route in ("private", "fast-lane", "model-generic", "gguf"):
            addon = Recorder.honours if route == "private" else ()
            if route in ("private", "fast-lane") or leaf.name.startswith(SERVER_LEVEL):
                devices: tuple[str | None, ...] = (
                    (None,) if route in ("private", "fast-lane") else ("cpu",)
                )
            else:
                devices = DEVICES
            for device in devices:
                if is_honoured(leaf, route, device, addon=addon):  # type: ignore[arg-type]
                    yield leaf.name, (route, device)


@pytest.mark.parametrize(("name", "case"), list(_cells()), indirect=["case"])
def test_each_honoured_cell_has_an_effect(name: str, case: Case) -> None:
    PROOFS[name](case)


def test_only_settings_that_nobody_honours_have_no_proof() -> None:
    assert {leaf.name for leaf in leaves()} - set(PROOFS) == {"router.laya_model"}
