"""Compares the samples of two lm-eval runs: texts must be equal, log-likelihoods within 1e-3.

python -m tests.lm_eval.compare RUN_A RUN_B
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TOLERANCE = 1e-3
"""Of a choice's log-likelihood, a sum over its tokens; logits differ by 1e-4 or so in float32."""


def samples(run: Path, task: str) -> dict[int, dict[str, Any]]:
    """Return doc_id -> sample of the newest log of a task; empty when the run lacks it."""
    logs = sorted(run.glob(f"*/samples_{task}_*.jsonl"))
    lines = logs[-1].read_text().splitlines() if logs else []
    return {sample["doc_id"]: sample for sample in map(json.loads, lines)}


def main(a: Path, b: Path) -> int:
    """Print what differs; return how many samples do."""
    bad = compared = 0
    worst = 0.0
    for task in ("onebit_choices", "onebit_answers"):
        left, right = samples(a, task), samples(b, task)
        for key in left.keys() & right.keys():
            compared += 1
            if task == "onebit_answers":
                differs = left[key]["resps"] != right[key]["resps"]
            else:
                pairs = [
                    (x[0], y[0])
                    for x, y in zip(left[key]["resps"], right[key]["resps"], strict=True)
                ]
                gap = max(abs(float(x[0]) - float(y[0])) for x, y in pairs)
                worst = max(worst, gap)
                differs = gap > TOLERANCE or any(x[1] != y[1] for x, y in pairs)
            if differs:
                bad += 1
                print(f"{task} {key}: {left[key]['resps']} / {right[key]['resps']}")
    print(f"{compared} samples, {bad} differ, log-likelihoods by {worst:.1e} at most")
    return bad if compared else 1


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]), Path(sys.argv[2]))))
