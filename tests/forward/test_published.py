"""Directories as other converters leave them give the logits of the plain one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onebit.container import TensorKind, TensorSpec, write_container
from onebit.container.codecs import plain, q4, q8
from onebit.container.codecs.tiles import Planes
from onebit.devices.cpu import native_status
from onebit.manifest import inspect_directory
from tests.fixtures.programs import prefill, program_on
from tests.fixtures.tiny_container import encode, random_tensors, tiny_config, write_tiny

IDS = list(range(5, 45))
DEVICES = ["reference", *([] if native_status() else ["cpu"])]
Change = Callable[[str, NDArray[np.float32], TensorSpec], TensorSpec | list[TensorSpec] | None]


def logits(directory: Path, device: str = "reference") -> NDArray[np.float32]:
    with program_on(directory, device) as program:
        return prefill(program, IDS)


def rewrite(
    directory: Path, family: str, change: Change, kind: TensorKind = TensorKind.Q4_1, **config: Any
) -> None:
    """Write a tiny directory with some tensors stored in another way."""
    write_tiny(directory, family, kind=kind, changes=config)
    specs: list[TensorSpec] = []
    for name, values in random_tensors(family, tiny_config(family, **config), 1).items():
        usual = encode(
            name, values, TensorKind.BF16 if "embed" in name or values.ndim == 1 else kind
        )
        made = change(name, values, usual)
        specs += made if isinstance(made, list) else [usual if made is None else made]
    write_container(directory / "model.q4nx", specs, {})


def spec(name: str, dtype: str, shape: tuple[int, ...], data: NDArray[Any]) -> TensorSpec:
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    return TensorSpec(name, dtype, shape, raw.size, lambda: [raw])


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize(
    "changes",
    [
        {"eos_token_id": 2},
        {"rope_theta": None, "rope_scaling": None,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        {"layer_types": ["full_attention", "full_attention"]},
        {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 0},
        {"sliding_window": None, "hidden_act": "silu", "attention_bias": False},
    ],
)  # fmt: skip
def test_configs_as_hugging_face_writes_them(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_tiny(tmp_path / "plain", "qwen3")
    write_tiny(tmp_path / "other", "qwen3")
    edit_config(tmp_path / "other", **changes)
    np.testing.assert_array_equal(logits(tmp_path / "other"), logits(tmp_path / "plain"))


def test_a_text_model_inside_a_multimodal_config(tmp_path: Path) -> None:
    config = write_tiny(tmp_path / "plain", "gemma3")
    write_tiny(tmp_path / "other", "gemma3")
    inner = {k: v for k, v in config.items() if not k.endswith("_token_id")}
    outer = {"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 8},
             "eos_token_id": [2], "bos_token_id": 1}  # fmt: skip
    (tmp_path / "other/config.json").write_text(json.dumps(outer))
    np.testing.assert_array_equal(logits(tmp_path / "other"), logits(tmp_path / "plain"))


@pytest.mark.parametrize("device", DEVICES)
def test_subtractive_tiles(tmp_path: Path, device: str) -> None:
    """Both read one weight: zeros of d * 8 as z = 8 (dtype Q4NX) and as m = -8 d."""

    def additive(name: str, values: NDArray[np.float32], usual: TensorSpec) -> TensorSpec | None:
        parts = _centred(name, values)
        if parts is None:
            return None
        data = q4.pack(TensorKind.Q4_1, Planes(parts.d, parts.codes, m=-8 * parts.d))
        return spec(name, "I8", usual.shape, data)

    def subtractive(name: str, values: NDArray[np.float32], usual: TensorSpec) -> TensorSpec | None:
        parts = _centred(name, values)
        if parts is None:
            return None
        eight = np.full_like(parts.d, 8)
        data = q4.pack(TensorKind.Q4NX, Planes(parts.d, parts.codes, z=eight))
        return spec(name, "Q4NX", values.shape, data)

    def signed(name: str, values: NDArray[np.float32], usual: TensorSpec) -> TensorSpec | None:
        parts = _centred(name, values)
        if parts is None:
            return None
        codes = (parts.codes.astype(np.int8) - 8).astype(np.int8)
        return spec(name, "I8", usual.shape, q4.pack(TensorKind.Q4_0, Planes(parts.d, codes)))

    made = {}
    for change in (additive, subtractive, signed):
        rewrite(tmp_path / change.__name__, "qwen3", change)
        made[change.__name__] = logits(tmp_path / change.__name__, device)
    np.testing.assert_allclose(made["subtractive"], made["additive"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(made["signed"], made["additive"], rtol=0, atol=1e-4)


def _centred(name: str, values: NDArray[np.float32]) -> Planes | None:
    """Return codes 0..15 around 8, or None for what is not quantised here."""
    if values.ndim == 1 or "embed" in name:
        return None
    parts = q4.quantize_q4_0(values)
    return Planes(np.abs(parts.d), (parts.codes.view(np.int8) + 8).astype(np.uint8))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "three"),
    [(TensorKind.Q4_1, True), (TensorKind.Q8_A, True), (TensorKind.Q8_B, False)],
)
def test_three_axes_and_the_other_code_layout(
    tmp_path: Path, device: str, kind: TensorKind, three: bool
) -> None:
    def change(name: str, values: NDArray[np.float32], usual: TensorSpec) -> TensorSpec | None:
        if values.ndim == 1 or "embed" in name or not three:
            return None
        rows, cols = -(-values.shape[0] // 32), -(-values.shape[1] // 256)
        shape = (rows, cols, kind.tile_bytes)
        return TensorSpec(name, "I8", shape, usual.nbytes, usual.produce)

    usual_kind = TensorKind.Q8_A if kind is TensorKind.Q8_B else kind
    write_tiny(tmp_path / "plain", "llama", kind=usual_kind)
    rewrite(tmp_path / "other", "llama", change, kind)
    expected = logits(tmp_path / "plain", device)
    np.testing.assert_allclose(logits(tmp_path / "other", device), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_mix_of_q4_k_and_q8_tiles(tmp_path: Path, device: str) -> None:
    kinds = {"mlp": TensorKind.Q4_K, "v_proj.weight": TensorKind.Q8_A}
    write_tiny(tmp_path, "qwen2", kinds=kinds)
    manifest = inspect_directory(tmp_path)
    assert manifest.tensor_kinds["q4_k"] == 6
    assert manifest.tensor_kinds["q8_a"] == 2
    expected = logits(tmp_path, "reference")
    np.testing.assert_allclose(logits(tmp_path, device), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("family", "scale"), [("llama", 1), ("gemma3", 16)])
def test_only_the_head_is_stored(tmp_path: Path, device: str, family: str, scale: int) -> None:
    """The embedding is then the head's rows, and the other way round; Gemma's times sqrt(256)."""

    def only(wanted: str, divisor: int) -> Change:
        def change(name: str, values: NDArray[np.float32], usual: TensorSpec) -> Any:
            if "embed" not in name:
                return None
            return encode(wanted, values / np.float32(divisor), TensorKind.Q8_A)

        return change

    rewrite(tmp_path / "embed", family, only("model.embed_tokens.weight", 1))
    rewrite(tmp_path / "head", family, only("lm_head.weight", scale))
    expected = logits(tmp_path / "embed", device)
    np.testing.assert_array_equal(logits(tmp_path / "head", device), expected)
    findings = inspect_directory(tmp_path / "head", deep=True).findings
    assert "container.embedding_scale" not in [f.code for f in findings]


@pytest.mark.parametrize("device", DEVICES)
def test_an_int8_embedding_with_scales(tmp_path: Path, device: str) -> None:
    def change(name: str, values: NDArray[np.float32], usual: TensorSpec) -> Any:
        if "embed" not in name:
            return None
        table, scale = plain.quantize_int8(values)
        return [
            spec(name, "I8", values.shape, table),
            spec(name + ".scale", "F32", scale.shape, scale),
            encode("lm_head.weight", values, TensorKind.Q8_A),
        ]

    rewrite(tmp_path / "int8", "llama", change)
    write_tiny(tmp_path / "plain", "llama")
    expected = logits(tmp_path / "plain", device)
    got = logits(tmp_path / "int8", device)
    assert np.abs(got - expected).max() < 0.1  # 8 bits of embedding and head
    assert inspect_directory(tmp_path / "int8").tensor_kinds["int8"] == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_head_padded_far_beyond_the_vocabulary(tmp_path: Path, device: str) -> None:
    def head(rows: int) -> Change:
        def change(name: str, values: NDArray[np.float32], usual: TensorSpec) -> Any:
            if "embed" not in name:
                return None
            padded = np.zeros((rows, values.shape[1]), np.float32)
            padded[: len(values)] = values
            return [usual, encode("lm_head.weight", padded, TensorKind.Q8_A)]

        return change

    rewrite(tmp_path / "exact", "llama", head(320))
    rewrite(tmp_path / "padded", "llama", head(1024))
    expected = logits(tmp_path / "exact", device)
    got = logits(tmp_path / "padded", device)
    assert got.shape == (len(IDS), 320)
    if device == "reference":  # a BLAS may sum in another order for another width
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_an_mlp_padded_to_512(tmp_path: Path, device: str) -> None:
    def change(name: str, values: NDArray[np.float32], usual: TensorSpec) -> Any:
        if "mlp" not in name or values.ndim == 1 or "norm" in name:
            return None
        rows, cols = values.shape
        padded = np.zeros((512 if rows == 320 else rows, 512 if cols == 320 else cols), np.float32)
        padded[:rows, :cols] = values
        return spec(name, "I8", *_tiles(q8.pack(TensorKind.Q8_A, q8.quantize(padded))))

    rewrite(tmp_path / "plain", "qwen2", lambda *_: None, TensorKind.Q8_A)
    rewrite(tmp_path / "padded", "qwen2", change, TensorKind.Q8_A)
    manifest = inspect_directory(tmp_path / "padded")
    assert manifest.plan is not None
    assert manifest.plan.dims["inter"] == 512
    expected = logits(tmp_path / "plain", device)
    np.testing.assert_allclose(logits(tmp_path / "padded", device), expected, rtol=0, atol=1e-4)


def _tiles(data: NDArray[np.uint8]) -> tuple[tuple[int, int], NDArray[np.uint8]]:
    return (data.size // 8704, 8704), data


def test_the_singular_prefix_and_extra_tensors(tmp_path: Path) -> None:
    def change(name: str, values: NDArray[np.float32], usual: TensorSpec) -> Any:
        made = [TensorSpec(name.replace("model.layers.", "model.layer."), usual.dtype, usual.shape,
                           usual.nbytes, usual.produce)]  # fmt: skip
        if "embed" in name:
            made.append(encode("vision_tower.patch.weight", np.ones((32, 256), np.float32),
                               TensorKind.BF16))  # fmt: skip
        return made

    rewrite(tmp_path / "other", "qwen3", change)
    write_tiny(tmp_path / "plain", "qwen3")
    np.testing.assert_array_equal(logits(tmp_path / "other"), logits(tmp_path / "plain"))
    notes = [f for f in inspect_directory(tmp_path / "other").findings if "vision_tower" in f.what]
    assert [f.code for f in notes] == ["container.unused_tensor"]
