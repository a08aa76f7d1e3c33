"""Native programs of whole tiny models: against the NumPy interpreter, and bit for bit alike
however the rows are batched, chunked, paged and shared over threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onebit.container import Container, TensorKind
from onebit.devices.base import Program, ProgramInfo, ProgramOptions, StepBatch
from onebit.devices.cpu import instruction_sets, open_cpu
from onebit.devices.reference import ReferenceOps
from onebit.families import derive_plan
from onebit.findings import DeviceError, UsageError
from onebit.forward import Interpreter
from onebit.plan import Plan, SpecialTokens, Weights, bind
from tests.bench.random_container import build

pytest.importorskip("onebit.devices._native")

TINY: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 160, "vocab_size": 320,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": TINY | {"model_type": "llama"},
    "qwen2": TINY | {"model_type": "qwen2", "hidden_size": 288, "tie_word_embeddings": False},
    "qwen3": TINY | {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 40},
    "gemma3": TINY
    | {"model_type": "gemma3_text", "sliding_window": 24, "num_hidden_layers": 3,
       "sliding_window_pattern": 2, "final_logit_softcapping": 20.0,
       "attn_logit_softcapping": 30.0},
}  # fmt: skip
OPTIONS = ProgramOptions(context=640, pages=64, page_size=32, max_rows=64, threads=2)
LENGTHS = (3, 70, 300, 1)


class Model:
    """A plan, its weights and the reference logits of every position of some sequences."""

    def __init__(self, directory: Path, config: dict[str, Any], kind: TensorKind) -> None:
        self.container = Container.open(build(directory, config, kind))
        self.plan: Plan = derive_plan(config, self.container, SpecialTokens()).plan
        self.weights: Weights = bind(self.plan, self.container)
        random = np.random.default_rng(1)
        self.sequences = [random.integers(0, 320, n).astype(np.int32) for n in LENGTHS]
        self._reference: list[np.ndarray] | None = None

    @property
    def reference(self) -> list[np.ndarray]:
        if self._reference is None:
            options = replace(OPTIONS, max_rows=max(LENGTHS), numerics="f32")
            info = ProgramInfo("reference", "f32", 1, self.plan.vocab, options, {})
            program = Interpreter(self.plan, self.weights, ReferenceOps(options.context), info)
            self._reference = [alone(program, tokens) for tokens in self.sequences]
        return self._reference

    def open(self, **changes: Any) -> Program:
        isa = changes.pop("isa", "")
        return open_cpu(self.plan, self.weights, replace(OPTIONS, **changes), isa=isa)


def alone(program: Program, tokens: np.ndarray) -> np.ndarray:
    """Logits of every position, in one step (chunked by max_rows), pages in order."""
    size, rows = program.info.options.page_size, program.info.options.max_rows
    table = np.arange(-(-len(tokens) // size), dtype=np.int32)[None]
    out = []
    for first in range(0, len(tokens), rows):
        part = tokens[first : first + rows]
        index = np.arange(len(part), dtype=np.int32)
        batch = StepBatch(part, index + first, np.zeros_like(index), table, index)
        out.append(program.step(batch).copy())
    return np.concatenate(out)


def mixed(
    program: Program, sequences: list[np.ndarray], chunk: int, seed: int
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Run all sequences together in random chunks; yield (sequence, position, logits)."""
    random = np.random.default_rng(seed)
    options = program.info.options
    counts = [-(-len(s) // options.page_size) for s in sequences]
    pages = random.permutation(options.pages).astype(np.int32)
    tables = np.full((len(sequences), max(counts)), -1, np.int32)
    for i, count in enumerate(counts):
        tables[i, :count] = pages[sum(counts[:i]) : sum(counts[: i + 1])]
    done = [0] * len(sequences)
    while any(at < len(s) for at, s in zip(done, sequences, strict=True)):
        rows: list[tuple[int, int]] = []
        for i in random.permutation(len(sequences)):
            room = options.max_rows - len(rows)
            count = min(len(sequences[i]) - done[i], int(random.integers(0, chunk + 1)), room)
            rows += [(int(i), p) for p in range(done[i], done[i] + count)]
            done[i] += count
        if not rows:
            continue
        wanted = np.flatnonzero(random.random(len(rows)) < 0.7).astype(np.int32)
        which, positions = np.array(rows, np.int32).T
        tokens = np.array([sequences[i][p] for i, p in rows], np.int32)
        batch = StepBatch(
            tokens, np.ascontiguousarray(positions), np.ascontiguousarray(which), tables, wanted
        )
        logits = program.step(batch)
        for line, row in zip(logits, wanted, strict=True):
            yield *rows[row], line.copy()


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    config = FAMILIES[request.param]
    return Model(tmp_path_factory.mktemp(request.param), config, TensorKind.Q4_1)


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize(
    ("numerics", "kv_dtype", "bound"),
    [("f32", "f32", 2e-5), ("i16", "f32", 2e-3), ("i8", "f32", 0.3), ("f32", "bf16", 0.1)],
)
def test_equals_the_reference(
    model: Model, isa: str, numerics: str, kv_dtype: str, bound: float
) -> None:
    program = model.open(isa=isa, numerics=numerics, kv_dtype=kv_dtype)
    for tokens, want in zip(model.sequences, model.reference, strict=True):
        got = alone(program, tokens)
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= bound * np.abs(want).max()
    program.close()


@pytest.mark.parametrize("numerics", ["f32", "i16", "i8"])
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
def test_logits_do_not_depend_on_the_company(model: Model, numerics: str, kv_dtype: str) -> None:
    program = model.open(numerics=numerics, kv_dtype=kv_dtype, threads=1)
    want = [alone(program, tokens) for tokens in model.sequences]
    seen = 0
    for seed, (chunk, page_size, max_rows, threads) in enumerate(
        [(64, 32, 64, 1), (64, 32, 64, 2), (1, 16, 8, 2), (7, 64, 40, 3), (300, 32, 256, 2)]
    ):
        other = model.open(
            numerics=numerics, kv_dtype=kv_dtype, threads=threads,
            page_size=page_size, max_rows=max_rows,
        )  # fmt: skip
        for sequence, position, logits in mixed(other, model.sequences, chunk, seed):
            assert np.array_equal(logits, want[sequence][position])
            seen += 1
        other.close()
    assert seen > 4 * sum(LENGTHS) * 0.5


def test_pages_of_another_sequence_can_be_shared(model: Model) -> None:
    """A second sequence with the same first tokens reads the first one's pages."""
    program = model.open()
    tokens = model.sequences[2][:100]
    want = alone(program, tokens)
    index = np.arange(36, dtype=np.int32)
    table = np.array([[0, 1, 9, 10]], np.int32)  # 64 positions shared, the rest anew
    batch = StepBatch(tokens[64:], index + 64, np.zeros_like(index), table, index)
    assert np.array_equal(program.step(batch), want[64:])


def test_no_logits_wanted(model: Model) -> None:
    program = model.open()
    index = np.arange(20, dtype=np.int32)
    table = np.zeros((1, 1), np.int32)
    tokens = model.sequences[1]
    nothing = np.zeros(0, np.int32)
    first = StepBatch(tokens[:20], index, np.zeros_like(index), table, nothing)
    assert program.step(first).shape == (0, model.plan.vocab)
    one = np.zeros(1, np.int32)
    last = StepBatch(tokens[20:21], one + 20, one, table, one)
    assert np.array_equal(program.step(last)[0], alone(model.open(), tokens[:21])[20])


def wrong(**changes: np.ndarray) -> StepBatch:
    fields = {
        "tokens": np.array([1, 2], np.int32),
        "positions": np.array([0, 1], np.int32),
        "sequences": np.zeros(2, np.int32),
        "page_tables": np.zeros((1, 1), np.int32),
        "logits_for": np.array([1], np.int32),
    }
    return StepBatch(**fields | {k: np.asarray(v, np.int32) for k, v in changes.items()})


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": [1, 320]},
        {"tokens": [-1, 2]},
        {"tokens": []},
        {"positions": [0, 2]},
        {"positions": [1, 0]},
        {"positions": [-1, 0]},
        {"positions": [639, 640]},
        {"positions": [31, 32]},
        {"sequences": [0, 1]},
        {"sequences": [0]},
        {"page_tables": [[-1]]},
        {"page_tables": [[64]]},
        {"logits_for": [2]},
        {"logits_for": [1, 0]},
    ],
)
def test_a_broken_batch_is_refused_and_harmless(model: Model, changes: dict[str, Any]) -> None:
    program = model.open()
    want = program.step(wrong()).copy()
    with pytest.raises(ValueError, match=r".{10,}"):
        program.step(wrong(**changes))
    assert np.array_equal(program.step(wrong()), want)


def test_timings_name_every_phase(model: Model) -> None:
    program = model.open()
    program.time_ops(True)
    program.step(wrong())
    timings = program.timings()
    layers = len(model.plan.layers)
    assert timings["attention"][0] == layers
    assert timings["QKV"][0] == layers
    assert timings["HEAD"][0] == 1
    assert all(seconds >= 0 for _, seconds in timings.values())


def test_a_closed_program_says_so(model: Model) -> None:
    program = model.open()
    program.close()
    program.close()
    assert not program.alive
    with pytest.raises(DeviceError, match="closed"):
        program.step(wrong())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"numerics": "f16"}, "numerics"),
        ({"kv_dtype": "q8"}, "q8"),
        ({"page_size": 24}, "24"),
        ({"isa": "mmx"}, "mmx"),
    ],
)
def test_unknown_options_are_refused(model: Model, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        model.open(**changes)
    assert caught.value.findings[0].mend


def test_defaults_are_resolved(model: Model) -> None:
    info = model.open(threads=0).info
    assert info.options.threads >= 1
    assert info.numerics == info.options.numerics != "auto"
    assert info.detail["isa"] == instruction_sets()[-1]
    assert model.open(numerics="exact").info.numerics == "f32"


@pytest.mark.parametrize(
    "kind", [TensorKind.Q4_0, TensorKind.Q4_K, TensorKind.Q8_A, TensorKind.Q8_B]
)
def test_every_kind(kind: TensorKind, tmp_path: Path) -> None:
    model = Model(tmp_path, FAMILIES["qwen2"], kind)
    assert model.weights.layer(0)["q"].kind is kind
    got = alone(model.open(numerics="f32"), model.sequences[1])
    want = model.reference[1]
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()
