"""Route `gguf`: a GGUF file is converted once into the cache, then served as a container."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from onebit import __version__
from onebit.config import DEVICES, DeviceName, RouteName, refused_fields
from onebit.findings import Finding, InputError, Refusal, Where, error, note
from onebit.routes.cache import GgufCache
from onebit.routes.model_generic import resolve_container
from onebit.routes.model_path import ModelPath
from onebit.routes.request import Request, Verdict
from onebit.routes.resolution import DeviceChoice, Progress, Resolution
from onebit.routes.session import Session

CONVERTER = f"onebit-{__version__}"
"""`onebit.convert.CONVERTER`, without the time it takes to import the converter."""


class Gguf:
    """The route of GGUF files."""

    name: RouteName = "gguf"

    def examine(self, request: Request) -> Verdict:
        """Take every GGUF file."""
        if request.model.kind == "gguf":
            return Verdict(True, "the model is a GGUF file")
        return Verdict(False, "the model is a directory, not a GGUF file")

    def resolve(self, request: Request) -> Resolution:
        """Resolve the converted container; one that is not converted yet is decided when opened."""
        cache = open_cache(request.world.cache_dir)
        source = request.model.path
        entry = cache.ready(cache.digest(source))
        if entry is not None:
            return _converted(request, entry)
        from onebit.convert import check_gguf

        check_gguf(source)
        refused = _certainly_refused(request)
        if refused:
            raise Refusal(refused)
        resolution = Resolution(
            model=str(source),
            name=request.name,
            route=self.name,
            trials=request.trials,
            device=DeviceChoice(
                asked=request.config.device,
                device=None,
                why="decided when the file is converted, at the first start",
            ),
            numerics=request.config.numerics,
            streams=request.config.npu.streams,
            memory=None,
            plan=None,
            settings=request.settings(),
            findings=(
                note(
                    "gguf.not_converted",
                    f"not converted yet: the first start converts it into {cache.root}",
                    Where(file=str(source)),
                ),
            ),
        )

        def open_it(progress: Progress) -> Session:
            begun = time.monotonic()
            session = _converted(request, convert_once(cache, source, progress)).open(progress)
            session.load_seconds = time.monotonic() - begun
            return session

        return resolution.with_opener(open_it)


def open_cache(root: Path) -> GgufCache:
    """Return the cache of this version of the converter."""
    return GgufCache(root, CONVERTER)


def convert_once(cache: GgufCache, source: Path, progress: Progress) -> Path:
    """Return the directory of a converted GGUF, converting it if no whole entry is there.

    Raises:
        InputError: the file cannot be converted, or it changed meanwhile.
    """
    from onebit.convert import convert_gguf

    digest = cache.digest(source, progress)
    with cache.locked(digest, progress):
        entry = cache.ready(digest)  # another process may have made it while this one waited
        if entry is not None:
            return entry
        cache.sweep(digest)
        entry = cache.path(digest)
        before = _identity(source)
        convert_gguf(source, entry, progress=lambda d, t: progress("converting the GGUF", d, t))
        if _identity(source) != before:
            cache.sweep(digest)
            what = "changed while it was converted"
            raise InputError(error("gguf.changed", what, "start again", Where(file=str(source))))
        cache.seal(entry, source, digest)
        return entry


def _identity(source: Path) -> tuple[int, int, int]:
    status = source.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _converted(request: Request, entry: Path) -> Resolution:
    """Resolve the entry as the container that it is, under the file's own name."""
    inner = replace(request, model=ModelPath("directory", entry), named=request.model.name)
    return resolve_container(inner, "gguf")


def _certainly_refused(request: Request) -> list[Finding]:
    """Return the settings that no device of this route honours: known without the plan."""
    asked = request.config.device
    devices: tuple[DeviceName, ...] = DEVICES if asked == "auto" else (asked,)
    refusals = [refused_fields(request.loaded, "gguf", device) for device in devices]
    always = set.intersection(*({finding.where for finding in found} for found in refusals))
    return [finding for finding in refusals[0] if finding.where in always]
