"""A directory with one thing wrong: the finding names file, field and mend."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onebit.findings import Finding, Severity
from onebit.manifest import inspect_directory
from onebit.plan import plan_text
from tests.fixtures.tiny_container import write_tiny

Edit = Callable[[Path], None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sound directory with a plan.json."""
    directory = tmp_path_factory.mktemp("good") / "qwen3"
    write_tiny(directory, "qwen3")
    manifest = inspect_directory(directory)
    assert manifest.sound, [str(f) for f in manifest.findings]
    assert manifest.plan is not None
    (directory / "plan.json").write_text(plan_text(manifest.plan))
    return directory


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    """Return a copy to break."""
    shutil.copytree(good, tmp_path / "model")
    return tmp_path / "model"


def errors(directory: Path) -> list[Finding]:
    manifest = inspect_directory(directory)
    found = [f for f in manifest.findings if f.severity is Severity.ERROR]
    assert manifest.sound is (not found)
    return found


def set_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def edit_header(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the header in place; its length stays, padded with spaces."""
    path = directory / "model.q4nx"
    raw = bytearray(path.read_bytes())
    length = struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= length
    raw[8 : 8 + length] = text.ljust(length)
    path.write_bytes(raw)


def test_a_sound_directory_has_no_errors_and_says_what_it_is(good: Path) -> None:
    manifest = inspect_directory(good, deep=True)
    assert manifest.sound
    assert manifest.family == "qwen3"
    assert manifest.plan_source == "plan.json"
    assert manifest.tensor_kinds == {"bf16": 10, "q4_1": 14}
    assert manifest.tokenizer is not None
    assert manifest.tokenizer.tokens == 320
    assert manifest.template is not None
    assert manifest.template.renders


def truncate(directory: Path) -> None:
    path = directory / "model.q4nx"
    os.truncate(path, path.stat().st_size - 1)


def delete_tensor(directory: Path) -> None:
    edit_header(directory, lambda h: h.pop("model.layers.1.self_attn.o_proj.weight"))


def swap_dtype(directory: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        header["model.layers.0.mlp.up_proj.weight"]["dtype"] = "BF16"

    edit_header(directory, change)


def zero_length(directory: Path) -> None:
    path = directory / "model.q4nx"
    raw = bytearray(path.read_bytes())
    raw[:8] = bytes(8)
    path.write_bytes(raw)


def foreign_plan(directory: Path) -> None:
    path = directory / "plan.json"
    plan = json.loads(path.read_text())
    plan["layers"][0]["tensors"]["q"]["name"] = "model.layers.0.attention.wq.weight"
    plan["family"] = "llama"
    path.write_text(json.dumps(plan))


@pytest.mark.parametrize(
    ("edit", "code", "file", "field"),
    [
        (truncate, "container.truncated", "model.q4nx", None),
        (lambda d: set_config(d, hidden_size=512), "config.dim", "config.json", "hidden_size"),
        (lambda d: set_config(d, hidden_size=512), "container.", "model.q4nx", "model."),
        (delete_tensor, "container.missing_tensor", "model.q4nx", "self_attn.o_proj"),
        (lambda d: (d / "tokenizer.json").unlink(), "file.missing", "tokenizer.json", None),
        (lambda d: (d / "config.json").write_text('{"a": }'), "json.", "config.json", None),
        (lambda d: set_config(d, vocab_size=300), "tokenizer.vocab", "tokenizer.json", None),
        (swap_dtype, "container.", "model.q4nx", "mlp.up_proj"),
        (zero_length, "container.", "model.q4nx", None),
        (foreign_plan, "plan.stale", "plan.json", None),
    ],
)  # fmt: skip
def test_each_edit_is_refused_by_file_field_and_mend(
    copy: Path, edit: Edit, code: str, file: str, field: str | None
) -> None:
    edit(copy)
    found = errors(copy)
    assert found
    assert any(
        f.code.startswith(code)
        and file in (f.where.file or "")
        and (field is None or field in (f.where.field or ""))
        for f in found
    ), [str(f) for f in found]
    assert all(f.mend and f.where.file for f in found)


def test_a_vocabulary_smaller_than_the_tokenizer(copy: Path) -> None:
    set_config(copy, vocab_size=300)
    (copy / "plan.json").unlink()
    found = {f.code: f for f in errors(copy)}
    assert "tokenizer.vocab" in found or "container.shape_mismatch" in found
    assert any("vocab_size" in f.what or "300" in f.what for f in found.values())


class TestC06AnotherModelsConfig:
    def test_all_mismatches_in_one_run(self, copy: Path) -> None:
        (copy / "plan.json").unlink()
        set_config(copy, num_hidden_layers=3, num_key_value_heads=4)
        edit_header(copy, rename_o_proj)
        text = "\n".join(str(f) for f in errors(copy))
        assert "config.json says 3 layers, the file holds 2" in text
        assert "model.layers.2.self_attn.q_proj.weight" in text
        assert "self_attn.k_proj.weight" in text
        assert "self_attn.v_proj.weight" in text
        assert "model.layers.0.self_attn.o_proj.weight" in text
        assert "o_prjo" in text

    def test_tiles_expected_and_found(self, copy: Path) -> None:
        (copy / "plan.json").unlink()
        set_config(copy, num_key_value_heads=4)
        what = next(f.what for f in errors(copy) if "k_proj" in (f.where.field or ""))
        assert "8" in what
        assert "4" in what
        assert "all 2 layers" in what


def rename_o_proj(header: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    header[name.replace("o_proj", "o_prjo")] = header.pop(name)


class TestK03JsonFiles:
    @pytest.mark.parametrize(
        ("content", "code"),
        [
            (b"", "json.empty"),
            (b"[]", "json.not_object"),
            (b'{"hidden_size": NaN}', "json.not_json"),
            (b'{"a": 1, "a": 2}', "json.duplicate"),
            (b'{"a": "\xff"}', "json.not_utf8"),
            (b"[" * 100_000, "json.too_deep"),
        ],
    )
    def test_config_json(self, copy: Path, content: bytes, code: str) -> None:
        (copy / "config.json").write_bytes(content)
        found = [f for f in errors(copy) if (f.where.file or "").endswith("config.json")]
        assert code in [f.code for f in found]

    def test_a_syntax_error_has_line_and_column(self, copy: Path) -> None:
        (copy / "config.json").write_text('{"a": 1,\n  "b": }')
        found = next(f for f in errors(copy) if f.code == "json.not_json")
        assert (found.where.line, found.where.column) == (2, 8)

    def test_half_a_tokenizer(self, copy: Path) -> None:
        raw = (copy / "tokenizer.json").read_bytes()
        (copy / "tokenizer.json").write_bytes(raw[: len(raw) // 2])
        assert "json.not_json" in [f.code for f in errors(copy)]

    def test_a_byte_order_mark_is_accepted(self, copy: Path) -> None:
        raw = (copy / "config.json").read_bytes()
        (copy / "config.json").write_bytes(b"\xef\xbb\xbf" + raw)
        assert errors(copy) == []

    def test_no_plan_is_derived_and_said(self, copy: Path) -> None:
        (copy / "plan.json").unlink()
        manifest = inspect_directory(copy)
        assert manifest.sound
        assert manifest.plan_source == "derived"
        assert "plan.derived" in [f.code for f in manifest.findings]

    def test_a_plan_of_another_schema(self, copy: Path) -> None:
        plan = json.loads((copy / "plan.json").read_text())
        (copy / "plan.json").write_text(json.dumps({**plan, "schema_version": 99}))
        assert [f.code for f in errors(copy)] == ["plan.schema"]

    def test_a_file_instead_of_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "model").write_text("x")
        assert [f.code for f in errors(tmp_path / "model")] == ["dir.not_directory"]

    def test_no_directory(self, tmp_path: Path) -> None:
        assert [f.code for f in errors(tmp_path / "nothing")] == ["dir.missing"]

    def test_spaces_and_letters_of_other_scripts(self, good: Path, tmp_path: Path) -> None:
        odd = tmp_path / "ein Modell für 你好"
        shutil.copytree(good, odd)
        assert errors(odd) == []


def test_a_template_that_fails_is_an_error(copy: Path) -> None:
    (copy / "chat_template.jinja").write_text("{{ raise_exception('no users here') }}")
    found = errors(copy)
    assert [f.code for f in found] == ["template.fails"]
    assert "no users here" in found[0].what


def test_an_unknown_model_type_lists_the_known_ones(copy: Path) -> None:
    set_config(copy, model_type="mamba")
    found = errors(copy)
    assert [f.code for f in found] == ["config.unknown_family"]
    assert "qwen3" in found[0].what


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(["model.q4nx", "config.json", "plan.json"]),
    edits=st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), max_size=5),
)
def test_mutations_never_end_in_a_traceback(
    good: Path, tmp_path: Path, name: str, edits: list[tuple[int, int]]
) -> None:
    for file in good.iterdir():
        raw = bytearray(file.read_bytes())
        if file.name == name:
            for at, byte in edits:
                raw[at % len(raw)] = byte
        (tmp_path / file.name).unlink(missing_ok=True)
        (tmp_path / file.name).write_bytes(raw)
    manifest = inspect_directory(tmp_path)
    assert all(f.mend for f in manifest.findings if f.severity is Severity.ERROR)
