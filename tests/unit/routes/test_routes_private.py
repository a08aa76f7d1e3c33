"""Private add-ons: chosen, declining, failing, missing; each with its name and reason."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from route_support import Machine, config

from onebit.devices.null import open_null
from onebit.findings import Refusal
from onebit.manifest import inspect_directory
from onebit.routes import private, resolve
from onebit.routes.addons import AddonModel, InstalledAddon, KnownAddon, known_addons, load_addon


class Addon:
    """An add-on for model_type llama that does as its attributes say."""

    name = "lama-addon"
    model_types = ("llama",)
    optional = False
    honours: tuple[str, ...] = ()

    def __init__(self, **attributes: Any) -> None:
        self.reason: str | None = None
        self.trouble: Exception | None = None
        self.opened: list[Any] = []
        for name, value in attributes.items():
            setattr(self, name, value)

    def decline(self, directory: Path, config: Any) -> str | None:
        if self.trouble is not None:
            raise self.trouble
        return self.reason

    def check(self, options: Any) -> list[str]:
        return [f"unknown option {key}" for key in options if key != "MODE"]

    def open(self, directory: Path, options: Any, settings: Any, program: Any) -> AddonModel:
        self.opened.append((directory, dict(options), dict(settings), program))
        plan = inspect_directory(directory).plan
        assert plan is not None
        return AddonModel(plan, open_null(plan.vocab, program))


def install(machine: Machine, *addons: Addon) -> None:
    machine.addons = [InstalledAddon(a.name, f"{a.name}-package", a) for a in addons]


def silent(doing: str, done: int, total: int) -> None:
    """Take progress without a word."""


def test_an_addon_serves_before_any_other_route(tiny: Path, machine: Machine) -> None:
    addon = Addon(honours=("threads",))
    install(machine, addon)
    resolution = resolve(config(tiny, npu__options={"MODE": "fast"}, threads=3), machine.world())
    assert resolution.route == "private"
    assert resolution.trials[0].why == "lama-addon serves model_type llama"
    assert resolution.device.device is None
    assert "lama-addon is its own device" in resolution.device.why
    session = resolution.open(silent)
    (directory, options, settings, program) = addon.opened[0]
    assert directory == tiny
    assert options == {"MODE": "fast"}
    assert settings == {"threads": 3}
    assert program.context == 256
    assert session.facts["route"] == "private"
    assert session.facts["device"] == "null"
    session.close()


def test_an_addon_that_declines_is_passed_over_with_its_reason(
    tiny: Path, machine: Machine
) -> None:
    install(machine, Addon(reason="it wants 8-bit heads"))
    resolution = resolve(config(tiny), machine.world())
    assert resolution.route == "model-generic"
    assert resolution.trials[0].why == "lama-addon declines: it wants 8-bit heads"


def test_the_next_addon_is_asked(tiny: Path, machine: Machine) -> None:
    install(machine, Addon(name="a", reason="no"), Addon(name="b", model_types=("x",)),
            Addon(name="c"))  # fmt: skip
    assert resolve(config(tiny), machine.world()).trials[0].why == "c serves model_type llama"


def test_a_failing_addon_refuses_the_model(tiny: Path, machine: Machine) -> None:
    install(machine, Addon(trouble=OSError("device gone")))
    with pytest.raises(Refusal) as caught:
        resolve(config(tiny), machine.world())
    (finding,) = caught.value.findings
    assert finding.code == "route.addon_failed"
    assert "lama-addon failed: OSError: device gone" in finding.what
    assert resolve(config(tiny, route="model-generic"), machine.world()).route == "model-generic"


def test_an_optional_addon_that_fails_is_passed_over(tiny: Path, machine: Machine) -> None:
    install(machine, Addon(optional=True, trouble=OSError("device gone")))
    resolution = resolve(config(tiny), machine.world())
    assert resolution.route == "model-generic"
    assert "OSError: device gone" in resolution.trials[0].why


def test_an_addon_that_cannot_be_loaded_is_named(tiny: Path, machine: Machine) -> None:
    machine.addons = [InstalledAddon("x", "x-package", None, "ImportError: libx.so")]
    resolution = resolve(config(tiny), machine.world())
    assert resolution.trials[0].why == "x-package cannot be loaded: ImportError: libx.so"
    with pytest.raises(Refusal, match=r"x-package cannot be loaded: ImportError: libx\.so"):
        resolve(config(tiny, route="private"), machine.world())


def test_unknown_options_are_refused_with_their_place(tiny: Path, machine: Machine) -> None:
    install(machine, Addon())
    with pytest.raises(Refusal) as caught:
        resolve(config(tiny, npu__options={"MOOD": "x"}), machine.world())
    (finding,) = caught.value.findings
    assert finding.what == "unknown option MOOD"
    assert finding.where.field == "npu.options (flag --npu-opt)"


def test_the_router_is_honoured_only_by_an_addon_that_says_so(tiny: Path, machine: Machine) -> None:
    install(machine, Addon())
    with pytest.raises(Refusal, match="only a private add-on that declares it"):
        resolve(config(tiny, router__laya_model="laya"), machine.world())
    addon = Addon(honours=("router.laya_model",))
    install(machine, addon)
    resolve(config(tiny, router__laya_model="laya"), machine.world()).open(silent).close()
    assert addon.opened[0][2] == {"router.laya_model": Path("laya")}


def test_settings_of_the_planned_routes_are_refused(tiny: Path, machine: Machine) -> None:
    install(machine, Addon())
    for settings in ({"npu__streams": 2}, {"device": "cpu"}, {"numerics": "i8"}):
        with pytest.raises(Refusal, match="no effect on route private"):
            resolve(config(tiny, **settings), machine.world())


def test_a_failure_to_open_names_the_addon(tiny: Path, machine: Machine) -> None:
    class Broken(Addon):
        def open(self, *args: Any) -> AddonModel:
            raise ValueError("bad weights")

    install(machine, Broken())
    with pytest.raises(Refusal, match="lama-addon failed to open the model: ValueError"):
        resolve(config(tiny), machine.world()).open(silent)


def test_a_missing_known_addon_is_named(
    tiny: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "known_addons", lambda: [KnownAddon("onebit-zaya", ("zaya",))])
    path = tiny / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "zaya"}))
    with pytest.raises(Refusal) as caught:
        resolve(config(tiny), machine.world())
    last = caught.value.findings[-1]
    assert last.code == "route.addon_missing"
    assert last.mend == "pip install onebit-zaya"


def test_the_list_of_known_addons(tmp_path: Path) -> None:
    assert isinstance(known_addons(), list)
    path = tmp_path / "addons.yaml"
    path.write_text("addons:\n- {package: p, model_types: [a, b]}\n")
    assert known_addons(path) == [KnownAddon("p", ("a", "b"))]
    path.write_text("addons: 3")
    with pytest.raises(Refusal, match="list of add-ons"):
        known_addons(path)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("route_support:Machine", ""),
        ("no.such.module:x", "ModuleNotFoundError"),
        ("route_support:absent", "AttributeError"),
    ],
)
def test_entry_points_are_loaded_or_explained(value: str, problem: str) -> None:
    found = load_addon(EntryPoint("x", value, "onebit.routes"))
    assert found.problem.startswith(problem)
    assert (found.addon is None) == bool(problem)
    assert found.package == value
