"""Each known converter mistake, planted in a good container, is found by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from onebit.container import Container, TensorKind
from onebit.convert.transforms import half_split_rows
from onebit.findings import Severity
from onebit.manifest import inspect_directory
from tests.fixtures.tiny_container import TINY_CONFIGS, write_tiny

UP = "model.layers.0.mlp.up_proj.weight"
Patch = Callable[[NDArray[np.uint8]], None]


def codes(directory: Path, severity: Severity = Severity.ERROR, *, deep: bool = True) -> list[str]:
    manifest = inspect_directory(directory, deep=deep)
    return [f.code for f in manifest.findings if f.severity is severity]


def patch(directory: Path, name: str, change: Patch) -> None:
    """Change one tensor's bytes in place."""
    container = Container.open(directory / "model.q4nx")
    entry = container.entries[name]
    container.close()
    raw = np.memmap(directory / "model.q4nx", np.uint8, mode="r+")
    data = np.array(raw[entry.begin : entry.end])
    change(data)
    raw[entry.begin : entry.end] = data


@pytest.mark.parametrize("family", sorted(TINY_CONFIGS))
@pytest.mark.parametrize(
    "kind", [TensorKind.Q4_1, TensorKind.Q4_K, TensorKind.Q8_A, TensorKind.Q8_B]
)
def test_no_false_alarm_on_good_containers(tmp_path: Path, family: str, kind: TensorKind) -> None:
    write_tiny(tmp_path, family, kind=kind)
    manifest = inspect_directory(tmp_path, deep=True)
    loud = [str(f) for f in manifest.findings if f.severity is not Severity.NOTE]
    assert loud == []


def test_no_false_alarm_on_smollm2(smollm2: Path) -> None:
    manifest = inspect_directory(smollm2, deep=True)
    assert [str(f) for f in manifest.findings if f.severity is not Severity.NOTE] == []
    assert "container.tied_head" in [f.code for f in manifest.findings]


def test_a_scale_that_is_not_a_number(tmp_path: Path) -> None:
    write_tiny(tmp_path)

    def change(data: NDArray[np.uint8]) -> None:
        data[5120 : 5120 + 2] = np.array([0x7FC0], "<u2").view(np.uint8)

    patch(tmp_path, UP, change)
    manifest = inspect_directory(tmp_path, deep=True)
    found = next(f for f in manifest.findings if f.code == "container.nonfinite")
    assert found.where.field == UP
    assert "byte 5120" in found.what


def test_an_absurd_scale(tmp_path: Path) -> None:
    write_tiny(tmp_path)

    def change(data: NDArray[np.uint8]) -> None:
        data[:2] = np.array([0x4E00], "<u2").view(np.uint8)

    patch(tmp_path, UP, change)
    assert codes(tmp_path) == ["container.absurd_scale"]


def test_a_tensor_of_zeros(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    patch(tmp_path, UP, lambda data: data.fill(0))
    assert "container.all_zero" in codes(tmp_path)


def test_eight_bit_codes_cut_to_four(tmp_path: Path) -> None:
    write_tiny(tmp_path)

    def change(data: NDArray[np.uint8]) -> None:
        tiles = data.reshape(-1, 5120)
        tiles[:, 512:1024] = tiles[:, :512]

    patch(tmp_path, UP, change)
    assert codes(tmp_path, deep=False) == ["container.q8_cut_to_q4"]


def test_a_q8_layout_that_the_plan_has_wrong(tmp_path: Path) -> None:
    write_tiny(tmp_path, kind=TensorKind.Q8_B)
    manifest = inspect_directory(tmp_path)
    assert manifest.tensor_kinds["q8_b"] == 14
    assert manifest.plan is not None
    plan = json.loads(manifest.plan.model_dump_json())
    plan["layers"][0]["tensors"]["up"]["kind"] = "q8_a"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert codes(tmp_path, deep=False) == ["plan.stale"]


def test_scales_that_lie_row_by_row(smollm2: Path, tmp_path: Path) -> None:
    directory = tmp_path / "swapped"
    shutil.copytree(smollm2, directory)

    def change(data: NDArray[np.uint8]) -> None:
        metas = data.reshape(-1, 5120)[:, :1024].reshape(-1, 2, 512)
        planes = np.ascontiguousarray(metas).view("<u2").reshape(-1, 2, 8, 32)
        turned = np.ascontiguousarray(planes.transpose(0, 1, 3, 2))
        data.reshape(-1, 5120)[:, :1024] = turned.view(np.uint8).reshape(-1, 1024)

    for layer in range(4):
        patch(directory, f"model.layers.{layer}.mlp.up_proj.weight", change)
    assert "container.scales_swapped" in codes(directory)


def test_rows_left_in_interleaved_order(smollm2: Path, tmp_path: Path) -> None:
    directory = tmp_path / "interleaved"
    shutil.copytree(smollm2, directory)
    back = np.argsort(half_split_rows(64, 1))
    for layer in range(30):
        for name, heads in (("q", 9), ("k", 3)):
            rows = np.concatenate([64 * h + back for h in range(heads)])
            patch(
                directory,
                f"model.layers.{layer}.self_attn.{name}_proj.weight",
                lambda data, rows=rows: _move_rows(data, rows),
            )
    manifest = inspect_directory(directory, deep=True)
    found = next(f for f in manifest.findings if f.code == "container.rope_interleaved")
    assert "permutation" in found.mend


def _move_rows(data: NDArray[np.uint8], rows: NDArray[np.intp]) -> None:
    """Reorder the rows of q4_1 tiles, 576 columns stored as 768."""
    tiles = data.reshape(-1, 3, 5120)
    metas = np.ascontiguousarray(tiles[:, :, :1024]).view("<u2").reshape(-1, 3, 2, 8, 32)
    flat = metas.transpose(0, 4, 1, 2, 3).reshape(-1, 3, 2, 8)[rows]
    moved = flat.reshape(-1, 32, 3, 2, 8).transpose(0, 2, 3, 4, 1)
    tiles[:, :, :1024] = np.ascontiguousarray(moved).view(np.uint8).reshape(-1, 3, 1024)
    pairs = tiles[:, :, 1024:].reshape(-1, 3, 2, 256, 8)
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1)  # [.., halves, cols, lanes, parity]
    by_row = nibbles.transpose(0, 2, 4, 5, 1, 3).reshape(-1, 3, 256)[rows]
    back = by_row.reshape(-1, 2, 8, 2, 3, 256).transpose(0, 4, 1, 5, 2, 3)
    tiles[:, :, 1024:] = (back[..., 0] | (back[..., 1] << 4)).reshape(-1, 3, 4096)


def test_gemma_norms_without_their_one(tmp_path: Path) -> None:
    write_tiny(tmp_path, "gemma3")

    def change(data: NDArray[np.uint8]) -> None:
        bits = data.view("<u2")
        values = (bits.astype(np.uint32) << 16).view(np.float32) - 1
        bits[:] = (values.view(np.uint32) >> 16).astype(np.uint16)

    for layer in range(6):
        patch(tmp_path, f"model.layers.{layer}.input_layernorm.weight", change)
    assert codes(tmp_path) == ["container.norm_offset"]


def test_a_declared_scale_that_the_family_drops(tmp_path: Path) -> None:
    write_tiny(tmp_path, "llama", changes={"scale_emb": 12})
    assert codes(tmp_path, deep=False) == ["config.dropped_scale"]
    write_tiny(tmp_path, "llama", changes={"odd_multiplier": 3.0})
    assert codes(tmp_path, Severity.WARNING, deep=False) == ["config.unknown_scale"]


def test_a_template_with_a_mark_that_is_no_token(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    template = "{% for m in messages %}<|nobody|>{{ m.content }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    manifest = inspect_directory(tmp_path)
    found = next(f for f in manifest.findings if f.code == "template.unknown_special")
    assert "<|nobody|>" in found.what


def test_a_tile_size_of_another_tool_is_named(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    path = tmp_path / "model.q4nx"
    raw = path.read_bytes()
    container = Container.open(path)
    entry = container.entries[UP]
    container.close()
    tiles = entry.shape[0]
    old = json.dumps([tiles, 5120], separators=(",", ":")).encode()
    new = json.dumps([tiles * 2, 2560], separators=(",", ":")).encode()
    at = raw.index(b'"' + UP.encode() + b'"')
    cut = raw.index(old, at)
    length = int.from_bytes(raw[:8], "little")
    header = raw[8:cut] + new + raw[cut + len(old) : 8 + length]
    header = header.rstrip(b" ").ljust(length)
    assert len(header) == length
    path.write_bytes(raw[:8] + header + raw[8 + length :])
    manifest = inspect_directory(tmp_path)
    errors = [f for f in manifest.findings if f.severity is Severity.ERROR]
    assert errors
    assert any(f.where.field and "up_proj" in f.where.field for f in errors)
    assert any("2560" in f.what for f in errors)
