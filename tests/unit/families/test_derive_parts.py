"""Config reading, rope recipes, special tokens, manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onebit.families import load_families, load_family, special_tokens, template_traits
from onebit.families.config_json import read_scope
from onebit.families.rope import rope_table
from onebit.findings import InputError
from onebit.ops.rope import cos_sin, inverse_frequencies, rope
from onebit.plan import RopeScaling, RopeTable
from tests.fixtures.tiny_container import tiny_config


def scope_of(family: str, **changes: Any) -> tuple[Any, dict[str, Any], list[Any]]:
    config = tiny_config(family, **changes)
    scope, findings = read_scope(load_families()[family], config, "config.json")
    return scope, config, findings


class TestConfig:
    def test_defaults_and_shorthands(self) -> None:
        scope, _, findings = scope_of("llama", num_key_value_heads=None)
        assert findings == []
        assert scope.numbers["kv_heads"] == 4
        assert scope.numbers["head_dim"] == 64
        assert scope.words["act"] == "silu"

    def test_text_config_is_looked_into(self) -> None:
        inner = tiny_config("gemma3")
        config = {"model_type": "gemma3", "text_config": inner}
        scope, findings = read_scope(load_families()["gemma3"], config, "config.json")
        assert findings == []
        assert scope.numbers["hidden"] == 256

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"hidden_size": None}, "hidden_size"),
            ({"hidden_size": "big"}, "hidden_size"),
            ({"hidden_size": -1}, "hidden_size"),
            ({"hidden_size": 1.5}, "hidden_size"),
            ({"num_hidden_layers": True}, "num_hidden_layers"),
            ({"hidden_act": "relu6"}, "hidden_act"),
        ],
    )
    def test_bad_values_are_named(self, change: dict[str, Any], field: str) -> None:
        _, _, findings = scope_of("llama", **change)
        assert field in [f.where.field for f in findings]


class TestRope:
    def table(self, **changes: Any) -> RopeTable:
        scope, config, _ = scope_of("llama", **changes)
        return rope_table(load_families()["llama"].ropes["main"], scope, config, "config.json")

    def test_llama3(self) -> None:
        table = self.table()
        assert table.theta == 500000.0
        assert table.scaling.kind == "llama3"
        assert table.scaling.original_context == 64

    def test_rope_parameters_of_newer_configs(self) -> None:
        parameters = {"rope_theta": 25000.0, "rope_type": "linear", "factor": 4.0}
        table = self.table(rope_theta=None, rope_scaling=None, rope_parameters=parameters)
        assert (table.theta, table.scaling.kind, table.scaling.factor) == (25000.0, "linear", 4.0)

    @pytest.mark.parametrize(
        ("scaling", "code"),
        [
            ({"rope_type": "spiral"}, "config.rope_kind"),
            ({"rope_type": "linear"}, "config.bad_rope"),
            ({"rope_type": "llama3", "factor": 8.0}, "config.bad_rope"),
            ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
             "config.bad_rope"),
            ("linear", "config.bad_rope"),
        ],
    )  # fmt: skip
    def test_refusals(self, scaling: Any, code: str) -> None:
        with pytest.raises(InputError) as problem:
            self.table(rope_scaling=scaling)
        assert [f.code for f in problem.value.findings] == [code]

    def test_frequencies_by_hand(self) -> None:
        plain = inverse_frequencies(RopeTable(dim=4, theta=100.0), 10)
        np.testing.assert_allclose(plain, [1.0, 0.1])
        linear = RopeScaling(kind="linear", factor=4.0)
        scaled = inverse_frequencies(RopeTable(dim=4, theta=100.0, scaling=linear), 10)
        np.testing.assert_allclose(scaled, [0.25, 0.025])

    def test_rotation_by_hand_and_what_passes_through(self) -> None:
        table = RopeTable(dim=2, theta=10.0)
        cos, sin = cos_sin(table, np.array([3], np.int32), 10)
        out = rope(np.array([[1.0, 2.0, 7.0, 8.0]], np.float32), cos, sin, head_dim=4)
        expected = [np.cos(3) - 2 * np.sin(3), 2 * np.cos(3) + np.sin(3), 7, 8]
        np.testing.assert_allclose(out[0], expected, rtol=1e-6)


class TestTokens:
    def test_every_end_token_is_gathered(self) -> None:
        added = [
            {"content": "<|im_end|>", "id": 7, "special": True},
            {"content": "</s>", "id": 8, "special": False},
        ]
        tokens = special_tokens(
            {"eos_token_id": 2, "bos_token_id": 1},
            {"eos_token_id": [2, 5]},
            {"add_bos_token": True},
            {"added_tokens": added},
        )
        assert tokens.eos == (2, 5, 7)
        assert tokens.bos == 1
        assert tokens.add_bos

    def test_bos_by_post_processor(self) -> None:
        processor = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}
        tokens = special_tokens({"bos_token_id": 1}, {}, {}, {"post_processor": processor})
        assert tokens.add_bos
        assert not special_tokens({"bos_token_id": 1}, {}, {}, {}).add_bos

    def test_template_traits(self) -> None:
        assert template_traits("<tool_call>").tool_format == "hermes"
        assert template_traits('ipython ... "parameters": ...').tool_format == "llama3_json"
        assert template_traits("{{ x }}<think>").thinks
        assert template_traits("plain").tool_format is None


class TestManifests:
    def test_all_families_load(self) -> None:
        assert sorted(load_families()) == [
            "gemma3", "llama", "minicpm", "nanbeige", "phi3", "qwen2", "qwen3",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("- a list", "family.unreadable"),
            ("a: [", "family.unreadable"),
            ("family: x\nschema: 1\n", "family.field"),
            ("family: x\nextends: x\n", "family.extends"),
        ],
    )
    def test_broken_manifests(self, tmp_path: Path, text: str, code: str) -> None:
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(InputError) as problem:
            load_family(tmp_path / "x.yaml")
        assert code in [f.code for f in problem.value.findings]
