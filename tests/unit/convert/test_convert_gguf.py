"""Conversion of GGUF files: values, refusals, and what is left behind."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onebit.container import Container, TensorKind, decode
from onebit.convert import check_gguf, convert_gguf, verify_gguf
from onebit.convert.transforms import half_split_rows
from onebit.findings import Finding, InputError
from onebit.manifest import inspect_directory
from onebit.plan import bind
from tests.fixtures.tiny_gguf import (
    HEAD_DIM,
    HEADS,
    Q,
    random_q4_k,
    random_q6_k,
    write_gguf,
)


def codes(problem: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [finding.code for finding in problem.value.findings]


def digests(directory: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in directory.iterdir()}


def decoded(directory: Path) -> dict[str, np.ndarray]:
    """Return every tensor of a plan by its container name."""
    manifest = inspect_directory(directory)
    assert manifest.sound, [str(f) for f in manifest.findings]
    assert manifest.plan is not None
    container = Container.open(directory / "model.q4nx")
    weights = bind(manifest.plan, container)
    views = [*weights.outer.values(), *(v for y in weights.layers for v in y.values())]
    values = {view.name: decode(view) for view in views}
    container.close()
    return values


@pytest.mark.parametrize(
    ("kind", "stored", "relative"),
    [
        (Q.Q4_0, "q4_1", 2**-8),
        (Q.Q4_1, "q4_1", 2**-7),
        (Q.Q4_K, "q4_1", 2**-7),
        (Q.Q8_0, "q8_a", 2**-8),
        (Q.Q5_0, "q8_a", 2**-7),
        (Q.Q6_K, "q8_a", 2**-7),
        (Q.F16, "bf16", 2**-8),
        (Q.BF16, "bf16", 0.0),
        (Q.F32, "bf16", 2**-8),
    ],
)
def test_every_source_type_decodes_as_ggufs_own(
    tmp_path: Path, kind: Q, stored: str, relative: float
) -> None:
    values = write_gguf(tmp_path / "m.gguf", kind=kind)
    report = convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    name = "model.layers.1.mlp.down_proj.weight"
    entry = next(t for t in report.tensors if t.name == name)
    assert entry.kind == stored
    source = values["blk.1.ffn_down.weight"]
    if kind is Q.Q4_K:
        expected = dequantize(random_q4_k(source.shape), kind)
    elif kind is Q.Q6_K:
        expected = dequantize(random_q6_k(source.shape), kind)
    elif kind is Q.F16:
        expected = source.astype(np.float16).astype(np.float32)
    elif kind is Q.F32:
        expected = source
    else:
        expected = dequantize(quantize(source, kind), kind)
    made = decoded(tmp_path / "out")[name]
    largest = np.abs(expected).max()
    np.testing.assert_allclose(made, expected, rtol=relative, atol=relative * largest)
    assert np.abs(made).max() > 0.5 * largest


def test_codes_are_kept_verbatim(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", kind=Q.Q4_1)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    checks = list(verify_gguf(tmp_path / "m.gguf", tmp_path / "out"))
    kept = [c for c in checks if c.codes_kept]
    assert len(kept) == 7 * 2 + 1  # all matrices of both layers, and the tied head
    assert all(c.holds and c.bound is not None and 0 < c.bound <= 1 for c in kept)


def test_verify_finds_a_changed_byte(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", kind=Q.Q4_1)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    container = Container.open(tmp_path / "out/model.q4nx")
    begin = container.entries["model.layers.0.mlp.up_proj.weight"].begin
    container.close()
    data = bytearray((tmp_path / "out/model.q4nx").read_bytes())
    data[begin + 1024] ^= 0x0F
    (tmp_path / "out/model.q4nx").write_bytes(data)
    bad = [c.name for c in verify_gguf(tmp_path / "m.gguf", tmp_path / "out") if not c.holds]
    assert bad == ["model.layers.0.mlp.up_proj.weight"]


def test_llama_rows_become_half_split(tmp_path: Path) -> None:
    assert half_split_rows(8, 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    values = write_gguf(tmp_path / "m.gguf", "llama", kind=Q.Q8_0)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    q = decoded(tmp_path / "out")["model.layers.0.self_attn.q_proj.weight"]
    source = dequantize(quantize(values["blk.0.attn_q.weight"], Q.Q8_0), Q.Q8_0)
    heads = source.reshape(HEADS, HEAD_DIM // 2, 2, -1).transpose(0, 2, 1, 3).reshape(q.shape)
    np.testing.assert_allclose(q, heads, rtol=2**-8)


def test_two_converts_are_identical(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "a")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "b")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert set(digests(tmp_path / "a")) == {
        "model.q4nx", "config.json", "tokenizer.json", "tokenizer_config.json", "plan.json",
        "generation_config.json",
    }  # fmt: skip


class TestV02ExactKeys:
    @pytest.mark.parametrize("place", ["metadata", "before"])
    def test_the_vision_towers_count_is_not_taken(self, tmp_path: Path, place: str) -> None:
        others = {"qwen3.vision.block_count": 1, "foo.embedding_length": 7}
        write_gguf(tmp_path / "m.gguf", **{place: others})
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        config = json.loads((tmp_path / "out/config.json").read_text())
        assert config["num_hidden_layers"] == 2
        assert config["hidden_size"] == 256

    def test_an_unmapped_tensor_is_named_as_skipped(self, tmp_path: Path) -> None:
        odd = {"blk.0.mystery.weight": np.zeros((4, 32), np.float32)}
        write_gguf(tmp_path / "m.gguf", extra=odd, kinds={"mystery": Q.F32})
        report = convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        skipped = [f for f in report.findings if f.code == "convert.skipped"]
        assert len(skipped) == 1
        assert "blk.0.mystery.weight" in skipped[0].what


class TestV03TypesPerTensor:
    def test_a_mixed_file_is_converted_by_each_tensors_type(self, tmp_path: Path) -> None:
        write_gguf(
            tmp_path / "m.gguf",
            kind=Q.Q4_0,
            kinds={"blk.0.ffn_down": Q.Q4_1, "token_embd": Q.Q6_K},
        )
        report = convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        types = {t.source: t.source_type for t in report.tensors}
        assert types["blk.0.ffn_down.weight"] == "Q4_1"
        assert types["token_embd.weight"] == "Q6_K"
        assert types["blk.1.ffn_down.weight"] == "Q4_0"
        assert all(c.holds for c in verify_gguf(tmp_path / "m.gguf", tmp_path / "out"))

    def test_an_unknown_type_id_is_refused_by_tensor_and_id(self, tmp_path: Path) -> None:
        write_gguf(tmp_path / "m.gguf")
        raw = bytearray((tmp_path / "m.gguf").read_bytes())
        name = b"blk.1.ffn_up.weight"
        at = raw.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
        rank = struct.unpack_from("<I", raw, at)[0]
        struct.pack_into("<I", raw, at + 4 + 8 * rank, 139)
        (tmp_path / "m.gguf").write_bytes(raw)
        with pytest.raises(InputError) as problem:
            convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        assert codes(problem) == ["gguf.unknown_type"]
        assert "139" in str(problem.value)
        assert "blk.1.ffn_up.weight" in str(problem.value)
        assert not (tmp_path / "out").exists()


def test_v04_a_part_of_a_split_file_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m-00001-of-00002.gguf", metadata={"split.count": 2})
    with pytest.raises(InputError) as problem:
        convert_gguf(tmp_path / "m-00001-of-00002.gguf", tmp_path / "out")
    assert codes(problem) == ["convert.split"]
    assert "not supported" in str(problem.value)


class TestN03Scales:
    @pytest.mark.parametrize("bits", [0x0000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0x8001])
    def test_fp16_scales_decode_exactly(self, tmp_path: Path, bits: int) -> None:
        def edit(name: str, raw: np.ndarray) -> np.ndarray:
            if name != "blk.0.ffn_up.weight":
                return raw
            changed = raw.copy()
            changed[0, :2] = np.frombuffer(struct.pack("<H", bits), np.uint8)
            return changed

        values = write_gguf(tmp_path / "m.gguf", kind=Q.Q8_0, edit=edit)
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        made = decoded(tmp_path / "out")["model.layers.0.mlp.up_proj.weight"][0, :32]
        block = quantize(values["blk.0.ffn_up.weight"], Q.Q8_0)[0, 2:34].view(np.int8)
        scale = np.array([bits], np.uint16).view(np.float16).astype(np.float32)[0]
        np.testing.assert_allclose(made, scale * block.astype(np.float32), rtol=2**-8)
        assert (bits == 0) == (not made.any())

    @pytest.mark.parametrize("bits", [0x7C00, 0x7E00])
    def test_a_scale_that_is_not_finite_is_refused(self, tmp_path: Path, bits: int) -> None:
        def edit(name: str, raw: np.ndarray) -> np.ndarray:
            if name != "blk.0.ffn_up.weight":
                return raw
            changed = raw.copy()
            changed[3, 20:22] = np.frombuffer(struct.pack("<H", bits), np.uint8)
            return changed

        write_gguf(tmp_path / "m.gguf", kind=Q.Q4_1, edit=edit)
        with pytest.raises(InputError) as problem:
            convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        assert codes(problem) == ["convert.nonfinite"]
        assert "row 3, block 1" in str(problem.value)
        assert list(tmp_path.iterdir()) == [tmp_path / "m.gguf"]


@pytest.mark.parametrize(
    "key",
    ["embedding_scale", "residual_scale", "logit_scale", "scale_emb", "scale_depth",
     "dim_model_base", "attn_logit_softcapping", "final_logit_softcapping"],
)  # fmt: skip
def test_a_declared_scale_is_never_dropped(tmp_path: Path, key: str) -> None:
    write_gguf(tmp_path / "m.gguf", metadata={f"qwen3.{key}": 12.5})
    with pytest.raises(InputError) as problem:
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert codes(problem) == ["convert.dropped_scale"]
    assert f"qwen3.{key}" in str(problem.value)
    assert not (tmp_path / "out").exists()


def test_an_unknown_scale_is_a_warning_and_an_unknown_rope_a_refusal(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", metadata={"qwen3.odd_multiplier": 3.0})
    report = convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert "convert.unknown_scale" in [f.code for f in report.findings]
    write_gguf(tmp_path / "r.gguf", metadata={"qwen3.rope.scaling.type": "spiral"})
    with pytest.raises(InputError) as problem:
        convert_gguf(tmp_path / "r.gguf", tmp_path / "out2")
    assert codes(problem) == ["convert.rope_kind"]


class TestRopeScaling:
    def test_llama3_divisors_become_its_four_numbers(self, tmp_path: Path) -> None:
        inverse = 500000.0 ** (-np.arange(32) / 32)
        smooth = np.clip((8192 * inverse / (2 * np.pi) - 1) / 3, 0, 1)
        divisors = (1 / ((1 - smooth) / 32 + smooth)).astype(np.float32)
        write_gguf(
            tmp_path / "m.gguf",
            "llama",
            metadata={"llama.rope.freq_base": 500000.0},
            extra={"rope_freqs.weight": divisors},
        )
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        config = json.loads((tmp_path / "out/config.json").read_text())
        assert config["rope_scaling"] == {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        }  # fmt: skip

    def test_other_divisors_are_kept(self, tmp_path: Path) -> None:
        divisors = np.linspace(1, 3, 32, dtype=np.float32)
        write_gguf(tmp_path / "m.gguf", "llama", extra={"rope_freqs.weight": divisors})
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        manifest = inspect_directory(tmp_path / "out")
        assert manifest.plan is not None
        factors = manifest.plan.ropes["main"].scaling.short_factor
        np.testing.assert_allclose(factors, divisors, rtol=1e-6)


class TestDirectory:
    def test_a_full_directory_is_kept_without_force(self, tmp_path: Path) -> None:
        write_gguf(tmp_path / "m.gguf")
        (tmp_path / "out").mkdir()
        (tmp_path / "out/mine.txt").write_text("keep")
        with pytest.raises(InputError) as problem:
            convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        assert codes(problem) == ["convert.exists"]
        assert "--force" in str(problem.value)
        assert (tmp_path / "out/mine.txt").read_text() == "keep"
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out", force=True)
        assert not (tmp_path / "out/mine.txt").exists()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "out"]

    def test_a_failed_convert_leaves_the_old_directory(self, tmp_path: Path) -> None:
        write_gguf(tmp_path / "m.gguf")
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        before = digests(tmp_path / "out")
        whole = (tmp_path / "m.gguf").read_bytes()
        (tmp_path / "m.gguf").write_bytes(whole[:-100])
        with pytest.raises(InputError) as problem:
            convert_gguf(tmp_path / "m.gguf", tmp_path / "out", force=True)
        assert codes(problem) == ["gguf.truncated"]
        assert digests(tmp_path / "out") == before
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "out"]

    def test_types_by_pattern(self, tmp_path: Path) -> None:
        write_gguf(tmp_path / "m.gguf")
        types = [("q_proj", TensorKind.Q8_A), ("nothing_like_this", TensorKind.BF16)]
        report = convert_gguf(tmp_path / "m.gguf", tmp_path / "out", types=types)
        kinds = {t.name: t.kind for t in report.tensors}
        assert kinds["model.layers.0.self_attn.q_proj.weight"] is TensorKind.Q8_A
        assert kinds["model.layers.0.self_attn.k_proj.weight"] is TensorKind.Q4_1
        assert "convert.type_unused" in [f.code for f in report.findings]
        assert inspect_directory(tmp_path / "out", deep=True).sound


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a sound GGUF."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(path)
    return path.read_bytes()


class TestHostileFiles:
    @pytest.mark.parametrize("length", [0, 3, 7, 20, 24, 100, 1000, 10_000])
    def test_cut_short(self, tmp_path: Path, whole: bytes, length: int) -> None:
        (tmp_path / "m.gguf").write_bytes(whole[:length])
        with pytest.raises(InputError) as problem:
            check_gguf(tmp_path / "m.gguf")
        assert codes(problem)[0] in ("gguf.broken", "gguf.truncated")

    @pytest.mark.parametrize("offset", [8, 16])
    def test_lying_counts_allocate_nothing(self, tmp_path: Path, whole: bytes, offset: int) -> None:
        raw = bytearray(whole)
        struct.pack_into("<Q", raw, offset, 1 << 60)
        (tmp_path / "m.gguf").write_bytes(raw)
        with pytest.raises(InputError) as problem:
            check_gguf(tmp_path / "m.gguf")
        assert codes(problem) == ["gguf.broken"]

    @settings(
        max_examples=200,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(edits=st.lists(st.tuples(st.integers(0, 12_000), st.integers(0, 255)), max_size=4))
    def test_mutations_never_end_in_a_traceback(
        self, tmp_path: Path, whole: bytes, edits: list[tuple[int, int]]
    ) -> None:
        raw = bytearray(whole)
        for at, byte in edits:
            raw[at] = byte
        (tmp_path / "m.gguf").write_bytes(raw)
        found: tuple[Finding, ...] = ()
        try:
            check_gguf(tmp_path / "m.gguf")
        except InputError as problem:
            found = problem.findings
        assert all(f.mend for f in found if f.severity == "error")
