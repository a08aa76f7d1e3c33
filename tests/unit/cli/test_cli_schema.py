"""The committed schemas are those of the models, and the example files keep to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onebit.cli.schema import NAMES, schema_of, schema_text
from onebit.config import load_config
from onebit.config.walk import leaves
from onebit.resources import resource_dir

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(resource_dir("manifests").glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_committed_schemas_are_fresh(name: str) -> None:
    committed = (ROOT / "schemas" / f"{name}.json").read_text(encoding="utf-8")
    assert committed == schema_text(name), "run `onebit schema --write schemas`"


def test_no_other_schema_is_committed() -> None:
    assert {path.stem for path in (ROOT / "schemas").glob("*.json")} == set(NAMES)


def test_the_config_schema_carries_the_ledger() -> None:
    schema = schema_of("serve-config")
    streams = schema["$defs"]["NpuConfig"]["properties"]["streams"]
    assert streams["x-routes"] == ["model-generic", "gguf"]
    assert streams["x-devices"] == ["npu"]
    assert streams["x-unit"] == "contexts"
    assert (streams["minimum"], streams["maximum"], streams["default"]) == (1, 8, 1)
    assert schema["additionalProperties"] is False


def test_every_setting_is_described_in_the_schema() -> None:
    schema = schema_of("serve-config")
    for leaf in leaves():
        node = schema
        for key in leaf.keys:
            node = node["properties"][key]
            if "$ref" in node:
                node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        assert node["description"], leaf.name
        assert "x-routes" in node, leaf.name


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_name_their_schema(path: Path) -> None:
    if path.name == "addons.yaml":
        return
    first = path.read_text(encoding="utf-8").splitlines()[0]
    target = first.removeprefix("# yaml-language-server: $schema=")
    assert target != first
    assert json.loads((path.parent / target).read_text())["title"] == "onebit serve-config"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load(path: Path) -> None:
    if path.name == "addons.yaml":
        return
    loaded = load_config(path)
    assert loaded.sources
