"""Kernel sets: needed designs, inspection without XRT, places, refusals."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from onebit.devices.npu import kernels as kernel_sets
from onebit.devices.npu.designs import Design, Part, choose_designs, needed_names, parse_name
from onebit.devices.npu.elf import inspect_elf
from onebit.devices.npu.kernels import find_kernel_set, inspect_kernels, load_choice
from onebit.findings import Refusal
from tests.device.conftest import Run
from tests.device.design_files import DEFAULT_SECTIONS, design_elf, write_design, write_kernels
from tests.fixtures.programs import plan_of
from tests.fixtures.tiny_container import write_tiny

QKV, OUT, GU, D = (
    "full_i8_QKV_K256_N512.elf",
    "full_i8_O_K256_N256.elf",
    "full_i8_GU_K256_N1024.elf",
    "full_i8_D_K512_N256.elf",
)


@pytest.fixture(scope="module")
def plan(tiny: Path):
    return plan_of(tiny)


def test_needed_designs(plan) -> None:
    assert needed_names(plan) == (QKV, OUT, GU, D)


def test_shapes_of_a_real_model() -> None:
    """Qwen3-0.6B, as its published kernel set names them."""
    from onebit.plan import Linear

    def op(role: str, k: int, *n: int) -> Linear:
        names = tuple(f"{role}{i}" for i in range(len(n)))
        return Linear(role=role, input="x", weights=names, out=names, k=k, n=n)

    class Fake:
        layers = (None,)
        epilogue = (op("HEAD", 1024, 151936),)

        def layer_ops(self, index: int):
            return (
                op("QKV", 1024, 2048, 1024, 1024),
                op("O", 2048, 1024),
                op("GU", 1024, 3072, 3072),
                op("D", 3072, 1024),
            )

    names = {
        "full_i8_QKV_K1024_N4096.elf",
        "full_i8_O_K2048_N1024.elf",
        "full_i8_GU_K1024_N6144.elf",
        "full_i8_D_K3072_N1024.elf",
    }
    assert set(needed_names(Fake())) == names
    head = choose_designs(Fake(), names).parts["HEAD", 1024, (151936,)]
    assert {part.design for part in head} == {Design("GU", 1024, 6144)}
    assert len(head) == -(-151936 // 6144)
    assert (head[0].begin, head[0].end, head[-1].end) == (0, 6144, 151936)


def test_k_and_n_are_padded_to_128(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m", "qwen2", changes={"hidden_size": 192, "intermediate_size": 320})
    names = needed_names(plan_of(tmp_path / "m"))
    assert names == (
        "full_i8_QKV_K256_N384.elf",
        "full_i8_O_K256_N256.elf",
        "full_i8_GU_K256_N640.elf",
        "full_i8_D_K384_N256.elf",
    )
    wide = {names[0], names[1], "full_i8_GU_K256_N1024.elf", "full_i8_D_K512_N256.elf"}
    choice = choose_designs(plan_of(tmp_path / "m"), wide)
    assert not choice.missing
    assert choice.parts["GU", 192, (320, 320)] == (Part(Design("GU", 256, 1024), 0, 640),)


@pytest.mark.parametrize(
    ("there", "parts", "missing"),
    [
        ({GU}, ["GU"], ()),
        (set(), None, (GU,)),
        ({"full_i8_G_K256_N512.elf", "full_i8_U_K256_N512.elf"}, ["G", "U"], ()),
        ({"full_i8_G_K256_N512.elf"}, None, ("full_i8_U_K256_N512.elf",)),
        ({GU, "full_i8_G_K256_N512.elf"}, ["GU"], ()),
        ({"full_i8_U_K256_N512.elf"}, None, (GU,)),
    ],
)
def test_fused_or_split_is_what_exists(plan, there, parts, missing) -> None:
    choice = choose_designs(plan, {QKV, OUT, D} | there)
    found = choice.parts.get(("GU", 256, (512, 512)))
    assert (None if found is None else [part.design.role for part in found]) == parts
    assert tuple(names[0] for names in choice.missing) == missing


def test_names() -> None:
    assert parse_name(GU) == Design("GU", 256, 1024)
    assert parse_name(GU).name == GU
    for wrong in ("layer_ctx0.elf", "final_i8_GU_K1_N1.xclbin", "full_i8_GU_K1.elf", f"x{GU}"):
        assert parse_name(wrong) is None


WHOLE = design_elf(256, 512)
without = {
    name: {k: v for k, v in DEFAULT_SECTIONS.items() if k != name} for name in DEFAULT_SECTIONS
}
BROKEN = {
    "empty": (b"", "stub of 0 bytes"),
    "stub": (b"x" * 59, "stub of 59 bytes"),
    "text": (b"version https://git-lfs.github.com/spec/v1\n" * 4, "magic number"),
    "other OS/ABI": (design_elf(256, 512, osabi=0), "not an NPU design (OS/ABI 0, expected 69)"),
    "other NPU": (design_elf(256, 512, osabi=64), "another NPU generation"),
    "half": (WHOLE[: len(WHOLE) // 2], "cut short"),
    "one byte less": (WHOLE[:-1], "cut short"),
    "header only": (WHOLE[:52] + bytes(20), "cut short"),
    "no configuration": (
        design_elf(256, 512, sections=without[".note.xrt.configuration"]),
        "no .note.xrt.configuration",
    ),
    "no code": (design_elf(256, 512, sections=without[".ctrltext.0"]), "no control code"),
    "empty code": (
        design_elf(256, 512, sections=DEFAULT_SECTIONS | {".ctrltext.0": b""}),
        "no control code",
    ),
    "no pdi": (design_elf(256, 512, sections=without[".pdi.0"]), "no array configuration"),
    "another shape": (design_elf(256, 640), "M, K, N = (128, 256, 640)"),
    "another M": (design_elf(256, 512, m=64), "M, K, N = (64, 256, 512)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_told_apart(case: str, plan, tmp_path: Path) -> None:
    write_kernels(tmp_path, plan)
    data, text = BROKEN[case]
    (tmp_path / QKV).write_bytes(data)
    report = inspect_kernels(tmp_path, plan)
    assert not report.complete
    (finding,) = report.findings
    assert finding.code == "npu.kernel_broken"
    assert finding.where.file == str(tmp_path / QKV)
    assert text in finding.what
    (file,) = (f for f in report.designs if f.name == QKV)
    assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / QKV
    for size in range(0, len(WHOLE), 7):
        path.write_bytes(WHOLE[:size])
        assert inspect_elf(path).problem
    path.write_bytes(WHOLE)
    facts = inspect_elf(path)
    assert (facts.problem, facts.bits, facts.machine, facts.osabi) == ("", 32, 69, 69)
    assert facts.shape == (128, 256, 512)
    assert facts.sections[".pdi.0"] == 64


def test_unneeded_files_do_not_matter(plan, tmp_path: Path) -> None:
    write_kernels(tmp_path, plan)
    (tmp_path / "full_i8_QKV_K999_N999.elf").write_bytes(b"stub")
    (tmp_path / "layer_ctx0.elf").write_bytes(b"stub")
    assert inspect_kernels(tmp_path, plan).complete
    assert not inspect_kernels(tmp_path).complete


def test_digests_of_the_descriptor_are_held(plan, tmp_path: Path) -> None:
    names = write_kernels(tmp_path, plan)
    digests = {
        n: {"sha256": hashlib.sha256((tmp_path / n).read_bytes()).hexdigest()} for n in names
    }
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({"designs": digests}))
    assert inspect_kernels(tmp_path, plan).complete
    digests[D]["sha256"] = "0" * 64
    path.write_text(json.dumps({"designs": digests}))
    (finding,) = inspect_kernels(tmp_path, plan).findings
    assert (finding.code, finding.where.file) == ("npu.kernel_broken", str(tmp_path / D))
    assert "differs from 000000000000" in finding.what
    path.write_text("[]")
    (finding,) = inspect_kernels(tmp_path, plan).findings
    assert finding.code == "npu.kernels_descriptor"


def test_the_first_place_with_designs_decides(plan, tmp_path: Path, monkeypatch) -> None:
    model = tmp_path / "model"
    places = [tmp_path / "variable", model / "npu", tmp_path / "configured", tmp_path / "package"]
    for place in places:
        write_kernels(place, plan)
    entry = EntryPoint("kit", "kit:directory", "onebit.kernels")
    monkeypatch.setattr(EntryPoint, "load", lambda self: lambda: places[3])
    monkeypatch.setattr(kernel_sets, "entry_points", lambda group: [entry])
    given = [places[2], str(places[0])]
    for expected in places:
        if expected == places[1]:
            given[1] = None
        if expected == places[2]:
            for file in (model / "npu").iterdir():
                file.unlink()
        if expected == places[3]:
            given[0] = None
        search = find_kernel_set(plan, model, *given)
        assert search.path == expected
        assert set(search.designs) == {QKV, OUT, GU, D}
        assert search.searched[-1].why == "4 designs, complete"
    assert [p.place for p in search.searched] == [
        "ONEBIT_NPU_KERNELS",
        "model directory",
        "configured",
        "package kit",
    ]


def test_an_incomplete_set_names_each_missing_file(plan, tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_kernels(tmp_path / "complete", plan)
    for name in (QKV, GU):
        write_design(model / "npu", name)
    search = find_kernel_set(plan, model, tmp_path / "complete", None)
    assert search.path is None
    assert [f.code for f in search.findings] == ["npu.kernel_missing"] * 2
    assert OUT in search.findings[0].what
    assert D in search.findings[1].what
    with pytest.raises(Refusal):
        load_choice(plan, model / "npu")


def test_a_named_place_without_kernels_is_not_passed_over(plan, tmp_path: Path) -> None:
    search = find_kernel_set(plan, tmp_path, None, str(tmp_path / "absent"))
    (finding,) = search.findings
    assert finding.code == "npu.kernels_directory"
    assert finding.where.file == str(tmp_path / "absent")


def test_no_set_names_the_shape_and_the_three_ways(plan, tmp_path: Path) -> None:
    search = find_kernel_set(plan, tmp_path, None, None)
    assert search.path is None
    (finding,) = search.findings
    assert finding.code == "npu.no_kernels"
    for text in ("hidden 256", "inter 512", QKV, OUT, GU, D):
        assert text in finding.what
    for text in ("ONEBIT_NPU_KERNELS", str(tmp_path / "npu"), "`kernels`"):
        assert text in finding.mend


def test_the_command_prints_the_table(tiny: Path, plan, tmp_path: Path, run: Run) -> None:
    write_kernels(tmp_path, plan)
    (tmp_path / D).unlink()
    result = run("kernels", tmp_path, "--model", tiny)
    assert result.status == 1
    assert f"the kernel set has no {D}" in result.out
    (row,) = (line for line in result.out.splitlines() if line.startswith(D))
    assert row.split()[1:4] == ["D", "512", "256"]
    assert row.rstrip().endswith("missing")
    write_design(tmp_path, D)
    result = run("kernels", tmp_path, "--model", tiny, "--json")
    assert result.status == 0
    report = json.loads(result.out)
    assert {d["name"] for d in report["designs"] if d["needed"]} == {QKV, OUT, GU, D}
