"""`onebit bench`: what it reports, and its peer, played by two small scripts."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onebit.cli.bench import command
from onebit.cli.bench_peer import Peer
from onebit.cli.bench_program import step_weight_bytes
from onebit.cli.bench_server import measure_server
from onebit.container import Container, TensorKind
from onebit.families import derive_plan
from onebit.findings import DeviceError, UsageError
from onebit.plan import SpecialTokens, bind
from tests.bench.random_container import build

pytest.importorskip("onebit.devices._native")

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 160, "vocab_size": 320,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip

LLAMA_BENCH = """
import json, sys
prompt = int(sys.argv[sys.argv.index("-p") + 1])
print(json.dumps([{"n_prompt": prompt, "n_gen": 0, "avg_ts": 50.0},
                  {"n_prompt": 0, "n_gen": 64, "avg_ts": 2.0}]))
"""
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def reply(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.reply({"status": "ok"})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["temperature"] == 0 and asked["ignore_eos"] is True
        self.reply({"usage": {"completion_tokens": asked["max_tokens"]}})
    def log_message(self, *arguments):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def script(path: Path, text: str) -> None:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bench"), CONFIG, TensorKind.Q4_1).parent


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    script(tmp_path / "llama-bench", LLAMA_BENCH)
    script(tmp_path / "llama-server", SERVER)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    return tmp_path


def bench(*arguments: str) -> Any:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
    return result.output


def test_json_report(model: Path) -> None:
    report = json.loads(bench(str(model), "--json", "--ops", "--threads", "1"))
    assert report["device"] == "cpu"
    assert report["threads"] == 1
    assert report["prompt_tokens"] == 512
    assert set(report["decode"]) == {"1", "4", "8", "16"}
    assert report["prefill"] > report["decode"]["1"] > 0
    assert report["first_token_ms"] == pytest.approx(512e3 / report["prefill"])
    kv = 2 * 1 * 32 * 4 * 2 * 65
    read = report["decode"]["1"] * report["bytes_per_token"] / report["read_bandwidth"]
    assert report["read_share"] == pytest.approx(read)
    assert report["bytes_per_token"] > kv
    assert report["memory"]["peak"] > report["memory"]["anonymous"] > 1e7
    assert report["ops"]["decode"]["attention"]["calls"] == 2
    assert report["peer"] == {}


def test_bytes_of_a_step_leave_padding_out(model: Path) -> None:
    with Container.open(model / "model.q4nx") as container:
        plan = derive_plan(CONFIG, container, SpecialTokens()).plan
        found = step_weight_bytes(plan, bind(plan, container))
    tile_group = 5120 // 8
    blocks = {"q": (3, 3), "k": (1, 3), "v": (1, 3), "o": (3, 3), "gate": (5, 3), "up": (5, 3),
              "down": (3, 5)}  # fmt: skip
    layer = sum(rows * groups for rows, groups in blocks.values()) * tile_group
    assert found == 2 * layer + 320 * 96 * 2  # the tied head is the bfloat16 embedding


def test_text_report_names_every_figure(model: Path) -> None:
    text = bench(str(model), "--ops")
    for part in ("prefill, 512 tokens", "decode, 8 at once", "read loop", "one decode step",
                 "attention", "memory, anonymous"):  # fmt: skip
        assert part in text


def test_peer_reads_llama_bench_and_starts_its_server(peer: Path) -> None:
    other = Peer(peer, peer / "model.gguf", threads=2)
    other.check()
    assert other.bench(128) == (50.0, 2.0)
    speed = measure_server(other.server(), 320, (1, 4))
    assert set(speed.total) == {1, 4}
    assert all(rate > 64 for rate in speed.total.values())
    assert 0 < speed.ready < 30
    assert speed.anonymous > 0


def test_peer_that_is_not_there(peer: Path) -> None:
    (peer / "llama-server").unlink()
    with pytest.raises(UsageError, match="llama-server"):
        Peer(peer, peer / "model.gguf", 1).check()
    script(peer / "llama-server", SERVER)
    with pytest.raises(UsageError, match="GGUF"):
        Peer(peer, peer, 1).check()


def test_peer_that_fails_says_what_it_said(peer: Path) -> None:
    script(peer / "llama-bench", "import sys; print('bad magic', file=sys.stderr); sys.exit(1)")
    with pytest.raises(DeviceError, match="bad magic"):
        Peer(peer, peer / "model.gguf", 1).bench(8)


def test_server_that_ends_is_not_waited_for(peer: Path) -> None:
    script(peer / "llama-server", "import sys; sys.exit(3)")
    with pytest.raises(DeviceError, match="status 3"):
        measure_server(Peer(peer, peer / "model.gguf", 1).server(), 320, (1,))
