"""The ledger: every field of the model x every route x every device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onebit.config import DEVICES, ROUTES, LoadedConfig, ledger, load_config, refused_fields
from onebit.config.ledger import LedgerError, entry_of, is_honoured
from onebit.config.names import DEVICE_NUMERICS
from onebit.config.serve import ServeConfig
from onebit.config.walk import Leaf, leaf_of, leaves

SET: dict[str, Any] = {
    "model": "some/model",
    "alias": "name",
    "route": "model-generic",
    "device": "cpu",
    "kernels": "some/kernels",
    "host": "0.0.0.0",
    "port": 8123,
    "ctx_size": 128,
    "threads": 3,
    "numerics": "i8",
    "npu.streams": 2,
    "npu.options": {"KEY": "value"},
    "npu.gemm": "host",
    "npu.lock_timeout": 7,
    "npu.launch_timeout": 7,
    "engine.kv_memory": 1 << 20,
    "engine.kv_dtype": "bf16",
    "engine.max_sequences": 3,
    "engine.queue": 5,
    "engine.prefill_chunk": 64,
    "engine.prefix_cache": False,
    "engine.deadline": 9,
    "api.keys": ["k"],
    "api.keys_file": "keys.txt",
    "api.public_without_key": True,
    "api.cors_origins": ["https://a.example"],
    "api.max_body": 4096,
    "api.model_mismatch": "accept",
    "api.strict_requests": True,
    "api.slots": False,
    "api.metrics": False,
    "api.body_timeout": 3,
    "api.idle_timeout": 3,
    "router.laya_model": "laya",
    "shutdown.grace": 1,
    "logging.level": "debug",
    "logging.format": "json",
}
"""A value other than the default for every setting. A new setting needs a line here."""

SERVING = {"private", "model-generic", "gguf"}
PLANNED = {"model-generic", "gguf"}
ALL = set(DEVICES)
# What this version promises, written out once more, so that an edit of the ledger is a decision.
EXPECTED: dict[str, tuple[set[str], set[str]]] = {
    "model": ({*SERVING, "fast-lane"}, ALL),
    "route": ({*SERVING, "fast-lane"}, ALL),
    "device": (PLANNED, ALL),
    "kernels": (PLANNED, {"npu"}),
    "threads": (PLANNED, {"cpu", "npu"}),
    "numerics": (PLANNED, ALL),
    "npu.streams": (PLANNED, {"npu"}),
    "npu.options": ({"private"}, ALL),
    "npu.gemm": (PLANNED, {"npu"}),
    "npu.lock_timeout": (PLANNED, {"npu"}),
    "npu.launch_timeout": (PLANNED, {"npu"}),
    "engine.kv_memory": (PLANNED, ALL),
    "engine.kv_dtype": (PLANNED, {"cpu", "reference"}),
    "router.laya_model": (set(), ALL),
}
"""Routes and devices of the settings that not every serving route honours."""

CELLS = [(name, route, device) for name in SET for route in ROUTES for device in DEVICES]


def setting(name: str, value: Any = None, **others: Any) -> LoadedConfig:
    """Return a config in which only `name` (and `others`) are set, by flag."""
    values = {name: SET[name] if value is None else value, **others}
    return load_config(None, {}, {leaf_of(n).keys: (leaf_of(n).flag, v) for n, v in values.items()})


def expected(name: str, route: str, device: str) -> bool:
    routes, devices = EXPECTED.get(name, (SERVING, ALL))
    if route == "private":
        return route in routes
    if name == "numerics":
        return route in routes and SET[name] in DEVICE_NUMERICS[device]
    return route in routes and device in devices


def test_every_field_of_the_model_has_a_ledger_entry() -> None:
    assert [entry.name for entry in ledger()] == [leaf.name for leaf in leaves()]
    assert {leaf.name for leaf in leaves()} == set(SET)
    for leaf in leaves():
        assert leaf.value(setting(leaf.name).config) != leaf.default, leaf.name


def test_a_field_without_an_entry_is_found() -> None:
    bare = Leaf(("new",), ServeConfig.model_fields["port"], None)
    with pytest.raises(LedgerError, match="new"):
        entry_of(bare)


@pytest.mark.parametrize(("name", "route", "device"), CELLS)
def test_each_cell_is_honoured_or_refused_by_name(name: str, route: Any, device: Any) -> None:
    others = {} if name == "device" or route in ("private", "fast-lane") else {"device": device}
    loaded = setting(name, **others)
    chosen = None if route == "private" else device
    findings = refused_fields(loaded, route, chosen)
    if expected(name, route, device):
        assert findings == []
        return
    (finding,) = findings
    assert finding.code == "config.not_honoured"
    assert finding.where.field == f"{name} (flag {leaf_of(name).flag})"
    assert f"{name} = " in finding.what
    assert f"route {route}" in finding.what
    assert ("with device" in finding.what) == (route != "private")
    assert f"take {name} out" in finding.mend


@pytest.mark.parametrize(
    ("name", "route", "device", "words"),
    [
        ("npu.streams", "model-generic", "cpu", "it is honoured with device: npu"),
        ("npu.streams", "fast-lane", "npu", "route model-generic or gguf honours it"),
        ("npu.options", "model-generic", "npu", "route private honours it"),
        ("kernels", "gguf", "reference", "it is honoured with device: npu"),
        ("threads", "model-generic", "reference", "it is honoured with device: cpu or npu"),
        ("numerics", "model-generic", "npu", "it is honoured with device: cpu"),
        ("router.laya_model", "model-generic", "npu", "only a private add-on that declares it"),
        ("threads", "private", None, "route model-generic or gguf honours it"),
    ],
)
def test_refusals_name_who_would_honour_it(name: str, route: Any, device: Any, words: str) -> None:
    others = {"device": device} if route in PLANNED else {}
    (finding,) = refused_fields(setting(name, **others), route, device)
    assert words in finding.mend


def test_a_refusal_names_the_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("model: m\nnpu:\n  streams: 4\n")
    (finding,) = refused_fields(load_config(path), "model-generic", "cpu")
    assert (finding.where.file, finding.where.line, finding.where.field) == (
        str(path),
        3,
        "npu.streams",
    )


def test_a_refusal_names_the_variable() -> None:
    loaded = load_config(None, {"ONEBIT_NPU__STREAMS": "4"})
    (finding,) = refused_fields(loaded, "model-generic", "cpu")
    assert finding.where.field == "npu.streams (env ONEBIT_NPU__STREAMS)"


def test_a_value_equal_to_the_default_asks_for_what_happens_anyway() -> None:
    assert refused_fields(setting("npu.streams", 1), "model-generic", "cpu") == []
    assert refused_fields(setting("numerics", "auto"), "model-generic", "reference") == []


def test_kernels_count_while_auto_chooses() -> None:
    assert refused_fields(setting("kernels"), "model-generic", "cpu") == []
    assert len(refused_fields(setting("kernels", device="cpu"), "model-generic", "cpu")) == 1
    assert len(refused_fields(setting("npu.streams"), "model-generic", "cpu")) == 1


def test_an_addon_may_honour_more() -> None:
    loaded = setting("router.laya_model", threads=2)
    assert len(refused_fields(loaded, "private", None)) == 2
    assert refused_fields(loaded, "private", None, {"router.laya_model", "threads"}) == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("numerics", ["f32", "i16", "i8", "int8-npu"])
def test_numerics_by_device(device: Any, numerics: str) -> None:
    leaf = leaf_of("numerics")
    assert is_honoured(leaf, "model-generic", device, value=numerics) == (
        numerics in DEVICE_NUMERICS[device]
    )


def test_no_secret_stands_in_a_refusal() -> None:
    text = "\n".join(map(str, refused_fields(setting("api.keys"), "fast-lane", "npu")))
    assert "api.keys" in text
    assert "'k'" not in text
