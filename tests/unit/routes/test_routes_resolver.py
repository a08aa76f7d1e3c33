"""Which route takes which directory: the decision table, frozen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from route_support import KERNELS, NPU, Machine, config

from onebit.config import ROUTES
from onebit.findings import Refusal
from onebit.routes import REGISTRY, Resolution, resolve, survey
from onebit.routes.addons import InstalledAddon
from onebit.routes.resolver import request_for


class Zaya:
    name = "zaya-addon"
    model_types = ("zaya",)
    optional = False
    honours = ()

    def decline(self, directory, config):
        return "it is too small" if config["hidden_size"] < 100 else None

    def check(self, options):
        return [f"unknown option {key}" for key in options if key != "MODE"]

    def open(self, directory, options, settings, program):
        raise AssertionError("not opened here")


def make_fast_lane(directory: Path) -> None:
    (directory / "npu").mkdir()
    for name in ("layer_ctx2048.elf", "lmhead.elf", "layer.pdi"):
        (directory / "npu" / name).write_bytes(b"\x7fELF")


def make_zaya(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "zaya"}))


SHAPES = {
    "container": lambda directory: None,
    "fast-lane": make_fast_lane,
    "zaya": make_zaya,
    "zaya + fast-lane": lambda directory: (make_fast_lane(directory), make_zaya(directory)),
    "no tokenizer": lambda directory: (directory / "tokenizer.json").unlink(),
    "no container": lambda directory: (directory / "model.q4nx").unlink(),
}

# shape, add-on installed, route asked, device asked -> route that decides, or code of the refusal
TABLE = [
    ("container", False, "auto", "auto", "model-generic"),
    ("container", True, "auto", "auto", "model-generic"),
    ("container", False, "model-generic", "cpu", "model-generic"),
    ("container", False, "private", "auto", "route.none"),
    ("container", False, "fast-lane", "auto", "route.none"),
    ("container", False, "gguf", "auto", "route.none"),
    ("fast-lane", False, "auto", "auto", "route.fast_lane_runtime"),
    ("fast-lane", False, "auto", "npu", "route.fast_lane_runtime"),
    ("fast-lane", False, "auto", "cpu", "model-generic"),
    ("fast-lane", False, "auto", "reference", "model-generic"),
    ("fast-lane", False, "fast-lane", "cpu", "route.fast_lane_runtime"),
    ("fast-lane", False, "model-generic", "auto", "model-generic"),
    ("zaya", True, "auto", "auto", "private"),
    ("zaya", True, "private", "auto", "private"),
    ("zaya + fast-lane", True, "auto", "auto", "private"),
    ("zaya + fast-lane", False, "auto", "auto", "route.fast_lane_runtime"),
    ("zaya", False, "auto", "auto", "config.unknown_family"),
    ("no tokenizer", False, "auto", "auto", "route.none"),
    ("no container", False, "auto", "auto", "route.none"),
]


def test_the_registry_is_in_the_order_of_the_routes() -> None:
    assert tuple(route.name for route in REGISTRY) == ROUTES


@pytest.mark.parametrize(("shape", "addon", "route", "device", "outcome"), TABLE)
def test_decision_table(
    tiny: Path, machine: Machine, shape: str, addon: bool, route: str, device: str, outcome: str
) -> None:
    SHAPES[shape](tiny)
    machine.npu, machine.kernels = NPU, KERNELS
    if addon:
        machine.addons = [InstalledAddon("zaya", "zaya-package", Zaya())]
    asked = {} if outcome == "private" else {"device": device}
    loaded = config(tiny, route=route, **asked)
    if "." in outcome:
        with pytest.raises(Refusal) as caught:
            resolve(loaded, machine.world())
        assert outcome in [finding.code for finding in caught.value.findings]
        return
    resolution = resolve(loaded, machine.world())
    assert resolution.route == outcome
    assert resolution.trials[-1].route == outcome
    assert resolution.trials[-1].taken
    assert not any(trial.taken for trial in resolution.trials[:-1])


def test_the_trace_says_why_each_route_was_passed_over(tiny: Path, machine: Machine) -> None:
    resolution = resolve(config(tiny), machine.world())
    assert [(t.route, t.taken, t.why) for t in resolution.trials] == [
        ("private", False, "no add-on (entry point group onebit.routes) serves model_type llama"),
        ("fast-lane", False,
         "no whole-layer kernels: npu/ has no layer_ctx*.elf, lmhead.elf, layer.pdi"),
        ("model-generic", True, "the directory has model.q4nx, config.json, tokenizer.json"),
    ]  # fmt: skip


def test_a_forced_route_says_that_the_others_were_not_tried(tiny: Path, machine: Machine) -> None:
    resolution = resolve(config(tiny, route="model-generic"), machine.world())
    assert resolution.trials[0].why == "not tried: the config asks for route model-generic"


def test_a_fast_lane_directory_is_offered_model_generic(tiny: Path, machine: Machine) -> None:
    make_fast_lane(tiny)
    with pytest.raises(Refusal) as caught:
        resolve(config(tiny), machine.world())
    (finding,) = caught.value.findings
    assert "no runtime for whole-layer kernels" in finding.what
    assert "`route: model-generic`" in finding.mend
    (tiny / "tokenizer.json").unlink()
    with pytest.raises(Refusal) as caught:
        resolve(config(tiny), machine.world())
    assert caught.value.findings[0].mend.startswith("add tokenizer.json and set")


def test_no_match_lists_every_route_and_what_is_broken(tiny: Path, machine: Machine) -> None:
    (tiny / "tokenizer.json").unlink()
    with pytest.raises(Refusal) as caught:
        resolve(config(tiny), machine.world())
    codes = [finding.code for finding in caught.value.findings]
    assert len(codes) >= 2  # the missing file by its own name, then the routes
    last = caught.value.findings[-1]
    for route in ROUTES:
        assert f"{route}: " in last.what
    assert "tokenizer.json" in str(caught.value.findings[0])


def test_an_empty_directory_is_no_broken_container(tmp_path: Path, machine: Machine) -> None:
    with pytest.raises(Refusal) as caught:
        resolve(config(tmp_path), machine.world())
    (finding,) = caught.value.findings
    assert finding.code == "route.none"
    assert "config.json" in finding.mend


def test_no_model_at_all(machine: Machine) -> None:
    with pytest.raises(Refusal, match=r"no model is named.*-m PATH"):
        resolve(config(None), machine.world())


def test_a_resolution_is_json_and_back(tiny: Path, machine: Machine) -> None:
    resolution = resolve(config(tiny, threads=2, alias="name"), machine.world())
    again = Resolution.model_validate_json(resolution.model_dump_json())
    assert again.model_dump_json() == resolution.model_dump_json()
    settings = {s.name: (s.value, s.source) for s in again.settings}
    assert settings["threads"] == (2, "flag --threads")
    assert settings["port"] == (8000, "default")
    assert again.name == "name"
    assert again.plan is not None
    assert again.plan.kinds == {"bf16": 6, "q4_1": 14}
    assert again.plan.gemms[0] == "QKV K256 N512"
    assert again.plan.derived
    with pytest.raises(RuntimeError, match="only a resolution that `resolve` made"):
        again.open(lambda doing, done, total: None)


def test_secrets_are_not_in_a_resolution(tiny: Path, machine: Machine) -> None:
    text = resolve(config(tiny, api__keys=["hush"]), machine.world()).model_dump_json()
    assert "hush" not in text
    assert "(1 hidden)" in text


def test_a_model_q4nx_is_its_directory(tiny: Path, machine: Machine) -> None:
    by_file = resolve(config(tiny / "model.q4nx"), machine.world())
    by_directory = resolve(config(tiny), machine.world())
    assert by_file.model == by_directory.model == str(tiny)
    assert by_file.name == by_directory.name == "tiny"


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("x.gguf", b"GGML....", "model.not_gguf"),
        ("x.gguf", b"", "model.not_gguf"),
        ("x.bin", b"whatever", "model.unknown"),
        ("absent", None, "model.not_found"),
    ],
)
def test_paths_that_are_no_model(
    tmp_path: Path, machine: Machine, name: str, data: bytes | None, code: str
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(Refusal) as caught:
        resolve(config(path), machine.world())
    (finding,) = caught.value.findings
    assert finding.code == code
    assert finding.where.file == str(path)
    assert finding.mend


def test_names_with_spaces_and_letters_of_the_world(tiny: Path, machine: Machine) -> None:
    odd = tiny.rename(tiny.parent / "mein Modell – 模型")
    resolution = resolve(config(odd), machine.world())
    assert resolution.name == "mein Modell – 模型"
    resolution.open(lambda doing, done, total: None).close()


def test_survey_says_which_routes_would_serve(tiny: Path, machine: Machine) -> None:
    found = survey(request_for(config(tiny), machine.world()))
    assert [t.route for t in found.trials] == list(ROUTES)
    assert [t.route for t in found.trials if t.taken] == ["model-generic"]
    assert found.resolution is not None
    make_fast_lane(tiny)
    found = survey(request_for(config(tiny), machine.world()))
    assert found.resolution is None
    assert found.findings[0].code == "route.fast_lane_runtime"
    assert {t.route for t in found.trials if t.taken and not t.findings} == {"model-generic"}
