"""Each command: its text, its JSON, its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import onebit
from onebit.cli import main as main_module
from onebit.cli import version as version_module
from onebit.plan import read_plan

from .conftest import Run

ROOT = Path(__file__).parents[3]


def test_version_is_the_text_after_the_first_space(run: Run) -> None:
    result = run("version")
    assert result.status == 0
    assert result.out.strip().split(" ", 1)[1] == onebit.__version__


def test_every_command_has_help(run: Run) -> None:
    listing = run("--help").out
    for name in main_module.COMMANDS:
        assert name in listing
        result = run(name, "--help")
        assert result.status == 0
        assert "Usage: onebit" in result.out


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["serve", "--nonsense"], ["schema"], ["schema", "nonsense"], ["validate"],
     ["serve", "--port", "many"], ["explain", "--npu-opt", "novalue"],
     ["explain", "--npu-opt", "A=1", "--npu-opt", "A=2"], ["explain", "--config", "/absent.yaml"]],
)  # fmt: skip
def test_bad_usage_is_status_2(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.status == 2
    assert result.err.strip()


def test_an_internal_error_is_one_line_and_a_hint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise ZeroDivisionError("what now")

    monkeypatch.setattr(version_module, "say", fail)
    result = run("version")
    assert result.status == 1
    assert "internal error: ZeroDivisionError: what now" in result.err
    assert "bug in onebit" in result.err
    with pytest.raises(ZeroDivisionError):
        main_module.main(["--debug", "version"])


def test_validate_a_servable_directory(run: Run, tiny: Path) -> None:
    result = run("validate", tiny)
    assert result.status == 0
    assert "servable: route model-generic on cpu" in result.out
    assert f"next: onebit serve -m {tiny}" in result.out
    for route in ("private", "fast-lane", "model-generic", "gguf"):
        assert route in result.out


def test_validate_as_json(run: Run, tiny: Path) -> None:
    result = run("validate", tiny, "--json", "--deep")
    report = json.loads(result.out)
    assert (report["servable"], report["route"], report["device"]) == (True, "model-generic", "cpu")
    assert report["manifest"]["tensor_kinds"] == {"bf16": 6, "q4_1": 14}
    assert [trial["route"] for trial in report["routes"]] == [
        "private", "fast-lane", "model-generic", "gguf",
    ]  # fmt: skip


def test_validate_answers_with_what_to_type_next(run: Run, tiny: Path) -> None:
    (tiny / "tokenizer.json").unlink()
    result = run("validate", tiny)
    assert result.status == 1
    assert "tokenizer.json" in result.out
    assert "not servable: " in result.out
    assert result.out.strip().splitlines()[-1].startswith("next: copy tokenizer.json")


def test_validate_nothing(run: Run, tmp_path: Path) -> None:
    result = run("validate", tmp_path / "absent")
    assert result.status == 1
    assert "no such file or directory" in result.out


def test_serve_refuses_with_the_findings_of_validate(run: Run, tiny: Path) -> None:
    data = (tiny / "model.q4nx").read_bytes()
    (tiny / "model.q4nx").write_bytes(data[:-1])
    validated = run("validate", tiny, "--json")
    assert validated.status == 1
    codes = {f["code"] for f in json.loads(validated.out)["findings"] if f["severity"] == "error"}
    served = run("serve", "-m", tiny, "--port", "0")
    assert served.status == 1
    assert served.out == ""
    for code in codes:
        assert f"[{code}]" in served.err


def test_explain_names_every_source(run: Run, tiny: Path, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    config = tmp_path / "serve.yaml"
    config.write_text(f"model: {tiny}\nctx_size: 64\nnpu: {{gemm: device}}\n")
    monkeypatch.setenv("ONEBIT_ENGINE__QUEUE", "7")
    result = run("explain", "--config", config, "--threads", "2", "--device", "cpu")
    assert result.status == 0
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert f"model {tiny} {config}:1" in lines
    assert f"ctx_size 64 {config}:2" in lines
    assert "engine.queue 7 env ONEBIT_ENGINE__QUEUE" in lines
    assert "threads 2 flag --threads" in lines
    assert "port 8000 default" in lines
    assert "device: cpu (asked: cpu)" in lines
    assert "context: 64 tokens; KV cache of" in result.out
    assert "QKV K256 N512" in result.out
    assert lines[-1] == f"serves {tiny} as tiny on route model-generic"
    data = json.loads(run("explain", "--config", config, "--json").out)
    assert {s["name"]: s["source"] for s in data["settings"]}["ctx_size"] == f"{config}:2"


def test_explain_refuses_a_setting_by_name_and_line(run: Run, tiny: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(f"model: {tiny}\ndevice: cpu\nnpu:\n  streams: 2\n")
    result = run("explain", "--config", config)
    assert result.status == 1
    assert f"{config}:4:3: npu.streams" in result.out
    assert "it is honoured with device: npu" in result.out
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert f"npu.streams 2 {config}:4" in lines
    assert "model-generic  refuses" in result.out
    data = json.loads(run("explain", "--config", config, "--json").out)
    assert data["refused"]
    assert [finding["code"] for finding in data["findings"]] == ["config.not_honoured"]


def test_explain_without_a_model(run: Run) -> None:
    result = run("explain")
    assert result.status == 1
    assert "no model is named" in result.out


def test_plan_is_shown_written_and_read_back(run: Run, tiny: Path) -> None:
    shown = run("plan", tiny)
    assert shown.status == 0
    assert not (tiny / "plan.json").exists()
    assert run("plan", tiny, "--write").status == 0
    written = read_plan(tiny / "plan.json")
    assert json.loads(run("plan", tiny, "--json").out) == written.model_dump(mode="json")
    report = json.loads(run("validate", tiny, "--json").out)
    assert report["manifest"]["plan_source"] == "plan.json"


def test_plan_replaces_a_stale_one(run: Run, tiny: Path) -> None:
    run("plan", tiny, "--write")
    path = tiny / "plan.json"
    fresh = path.read_bytes()
    path.write_bytes(fresh.replace(b'"family": "llama"', b'"family": "qwen2"'))
    result = run("validate", tiny)
    assert result.status == 1
    assert "plan.stale" in result.out
    assert run("plan", tiny, "--write").status == 0
    assert path.read_bytes() == fresh
    assert run("validate", tiny).status == 0


def test_plan_of_a_broken_directory(run: Run, tiny: Path) -> None:
    (tiny / "config.json").write_text("{")
    result = run("plan", tiny, "--write")
    assert result.status == 1
    assert "config.json" in result.err
    assert not (tiny / "plan.json").exists()


def test_inspect_prints_the_tensor_table(run: Run, tiny: Path) -> None:
    result = run("inspect", tiny)
    assert result.status == 0
    rows = [line.split() for line in result.out.splitlines()]
    assert rows[0][:2] == ["tensor", "logical"]
    assert ["model.layers.0.mlp.gate_proj.weight", "512x256", "q4_1", "I8", "16x5120",
            "81.9", "kB"] in rows  # fmt: skip
    assert json.loads(run("inspect", tiny, "--json").out)["family"] == "llama"


def test_cache_list_and_clear(run: Run, tmp_path: Path) -> None:
    assert "0 entries" in run("cache", "list").out
    entry = tmp_path / "cache" / "gguf" / "abc-onebit-0"
    entry.mkdir(parents=True)
    (entry / "model.q4nx").write_bytes(bytes(1500))
    listed = run("cache", "list")
    assert "damaged" in listed.out
    assert "1 entries, 1.5 kB" in listed.out
    assert json.loads(run("cache", "list", "--json").out)[0]["path"] == str(entry)
    assert "removed 1 entries" in run("cache", "clear").out
    assert not entry.exists()


@pytest.mark.parametrize("flag", ["--embedding", "--reranking"])
def test_other_kinds_of_models_are_refused_by_name(run: Run, tiny: Path, flag: str) -> None:
    result = run("serve", "-m", tiny, "--port", "0", "--device", "auto", "--alias", "x", flag)
    assert result.status == 1
    assert flag in result.err
    assert "text generation" in result.err


def test_run_streams_a_completion(run: Run, tiny: Path) -> None:
    first = run("run", "Hello", "-m", tiny, "--max-tokens", "8")
    assert first.status == 0
    assert len(first.out) > 1
    assert run("run", "Hello", "-m", tiny, "--max-tokens", "8").out == first.out
    chat = run("run", "Hello", "-m", tiny, "--max-tokens", "8", "--chat")
    assert chat.status == 0
    assert chat.out != first.out


def test_run_with_a_prompt_that_is_too_long(run: Run, tiny: Path) -> None:
    result = run("run", "x" * 300, "-m", tiny)
    assert result.status == 1
    assert "300 tokens" in result.err
    assert "256" in result.err


def test_schema_prints_json(run: Run) -> None:
    assert json.loads(run("schema", "finding").out)["title"] == "onebit finding"


def test_help_shows_choices_and_units(run: Run) -> None:
    text = run("serve", "--help").out
    assert "--device auto|cpu|npu|reference" in text
    assert "-m, --model PATH" in text
    assert "--ctx-size TOKENS" in text
    assert "--npu-opt KEY=VALUE" in text
    assert "--laya-model PATH" in text
    assert "--embedding" not in text


def test_validate_needs_neither_pyxrt_nor_the_native_extension(tiny: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['pyxrt'] = None\n"
        "sys.modules['onebit.devices._native'] = None\n"
        "import onebit\n"
        "assert 'numpy' not in sys.modules\n"
        "from onebit.cli.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "validate", str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "servable: route model-generic on reference" in done.stdout
    assert "native kernels are missing" in done.stdout
