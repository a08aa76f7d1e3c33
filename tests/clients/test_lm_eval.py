"""lm-eval on a server, and on transformers with the same weights: the same scores.

The tasks are in `lm_eval`. Each client reads SmolLM2's dequantised weights in float32.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import MODEL, Environment
from tests.clients.hf_directory import write_hf_directory
from tests.fixtures.child import Child

pytestmark = [pytest.mark.clients, pytest.mark.timeout(3600)]

TASKS = Path(__file__).parent / "lm_eval"
TOLERANCE = 1e-3
"""Of log-likelihoods down to -21; measured 1.2e-4."""
CHOICE, ANSWER = "onebit_choice", "onebit_answer"


@dataclass
class Scored:
    """What one run of lm-eval wrote."""

    scores: dict[str, dict[str, float]]
    samples: dict[str, list[dict[str, Any]]]


@dataclass
class Harness:
    """lm-eval, and where its output goes."""

    programs: Path
    folder: Path

    def run(
        self,
        model: str,
        arguments: dict[str, Any],
        *tasks: str,
        chat: bool = False,
        batch: int = 1,
    ) -> Scored:
        out = self.folder / f"out{len(list(self.folder.glob('out*')))}"
        command = [self.programs / "lm_eval", "--model", model, "--include_path", TASKS]
        command += ["--model_args", ",".join(f"{k}={v}" for k, v in arguments.items())]
        command += ["--tasks", ",".join(tasks), "--log_samples", "--output_path", out]
        command += ["--apply_chat_template"] if chat else []
        command += ["--device", "cpu"] if model == "hf" else ["--batch_size", str(batch)]
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(self.folder)}
        done = subprocess.run(
            command,
            cwd=TASKS,
            env={**os.environ, **offline, "TOKENIZERS_PARALLELISM": "false"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        (results,) = out.rglob("results_*.json")
        scores = json.loads(results.read_text())["results"]
        samples = {}
        for task in tasks:
            (file,) = out.rglob(f"samples_{task}_*.jsonl")
            samples[task] = [json.loads(line) for line in file.read_text().splitlines()]
        return Scored({task: _metrics(scores[task]) for task in tasks}, samples)


def _metrics(scores: dict[str, Any]) -> dict[str, float]:
    return {k: v for k, v in scores.items() if isinstance(v, float) and "stderr" not in k}


def check_same(scored: Scored, reference: Scored, task: str) -> float:
    """Check that scores and samples are the same; return the greatest difference."""
    assert scored.scores[task] == reference.scores[task]
    assert all(0 < value < 1 for value in scored.scores[task].values())
    pairs = list(zip(scored.samples[task], reference.samples[task], strict=True))
    assert len(pairs) == 20
    greatest = 0.0
    for mine, theirs in pairs:
        assert mine["doc"] == theirs["doc"]
        if task == ANSWER:
            assert mine["resps"] == theirs["resps"]
            continue
        for (got,), (wanted,) in zip(mine["resps"], theirs["resps"], strict=True):
            assert got[1] == wanted[1], (mine["doc"], got, wanted)
            greatest = max(greatest, abs(float(got[0]) - float(wanted[0])))
    assert greatest < TOLERANCE
    return greatest


@pytest.fixture(scope="module")
def harness(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    programs = environment("lmeval", "lm-eval[api]", "torch", "transformers", "accelerate")
    return Harness(programs, tmp_path_factory.mktemp("lm_eval"))


@pytest.fixture(scope="module")
def local(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the arguments of lm-eval's own model on the dequantised weights."""
    weights = write_hf_directory(smollm2, tmp_path_factory.mktemp("hf") / "smollm2")
    return {"pretrained": weights, "dtype": "float32"}


@pytest.fixture(scope="module")
def reference(harness: Harness, local: dict[str, Any]) -> Scored:
    return harness.run("hf", local, CHOICE, ANSWER)


@pytest.mark.parametrize(
    ("backend", "ids", "batch"),
    [("huggingface", True, 8), ("huggingface", False, 1), ("auto", True, 1)],
)
def test_completions(
    served: Child,
    smollm2: Path,
    harness: Harness,
    reference: Scored,
    backend: str,
    ids: bool,
    batch: int,
) -> None:
    arguments = {
        "model": MODEL,
        "base_url": f"{served.url}/v1/completions",
        "num_concurrent": 4,
        "tokenizer_backend": backend,  # auto: the server's own, by /tokenizer_info
        "tokenized_requests": ids,
    }
    if backend == "huggingface":
        arguments["tokenizer"] = smollm2
    scored = harness.run("local-completions", arguments, CHOICE, ANSWER, batch=batch)
    for task in (CHOICE, ANSWER):
        print(backend, ids, scored.scores[task], check_same(scored, reference, task))


def test_chat_completions(served: Child, harness: Harness, local: dict[str, Any]) -> None:
    arguments = {"model": MODEL, "base_url": f"{served.url}/v1/chat/completions"}
    scored = harness.run(
        "local-chat-completions", arguments | {"num_concurrent": 4}, ANSWER, chat=True
    )
    reference = harness.run("hf", local, ANSWER, chat=True)
    check_same(scored, reference, ANSWER)
    print(scored.scores)


def test_the_comparison_fails_on_other_answers(reference: Scored) -> None:
    for task in (CHOICE, ANSWER):
        assert check_same(reference, reference, task) == 0
        for samples in (reference.samples[task][1:], reference.samples[task][::-1], []):
            with pytest.raises((AssertionError, ValueError)):
                check_same(Scored(reference.scores, {task: samples}), reference, task)
