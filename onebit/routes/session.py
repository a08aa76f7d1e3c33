"""A resolution, opened: the model loaded and ready to step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from onebit.config import ServeConfig
from onebit.container import Container
from onebit.devices.base import Program, ProgramOptions
from onebit.engine import EngineLimits
from onebit.plan.model import Plan
from onebit.routes.request import Request
from onebit.routes.resolution import Memory, Progress, Resolution
from onebit.routes.world import Opening
from onebit.text import TextModel, load_text


@dataclass
class Session:
    """What a server needs: plan, program and text of one model."""

    resolution: Resolution
    plan: Plan
    program: Program
    text: TextModel
    limits: EngineLimits
    load_seconds: float
    _container: Container | None = field(default=None, repr=False)

    @property
    def facts(self) -> dict[str, object]:
        """For the ready line and /health."""
        info = self.program.info
        facts: dict[str, object] = {
            "route": self.resolution.route,
            "device": info.device,
            "device_why": self.resolution.device.why,
            "kernels": self.resolution.device.kernels.path
            or info.detail.get("isa")
            or info.detail.get("kernels")
            or "numpy",
            "numerics": info.numerics,
            "threads": info.threads,
            "context": info.options.context,
        }
        if self.resolution.streams > 1:
            facts["npu_streams"] = self.resolution.streams
        warnings = [str(f) for f in self.resolution.findings if f.code == "cpu.slow"]
        if warnings:
            facts["warnings"] = warnings
        return facts

    def close(self) -> None:
        """Free program, text and container. Safe to call twice."""
        self.program.close()
        self.text.close()
        if self._container is not None:
            self._container.close()
            self._container = None


def engine_limits(config: ServeConfig) -> EngineLimits:
    """Return the engine's bounds as the config states them."""
    return EngineLimits(
        max_sequences=config.engine.max_sequences,
        queue=config.engine.queue,
        prefill_chunk=config.engine.prefill_chunk,
        prefix_cache=config.engine.prefix_cache,
        deadline=config.engine.deadline or None,
    )


def program_options(config: ServeConfig, memory: Memory) -> ProgramOptions:
    """Return how the program is laid out."""
    return ProgramOptions(
        context=memory.context,
        pages=memory.pages,
        page_size=memory.page_size,
        max_rows=config.engine.prefill_chunk + config.engine.max_sequences,
        threads=config.threads,
        numerics=config.numerics,
        kv_dtype=config.engine.kv_dtype,
    )


def open_session(
    request: Request, resolution: Resolution, plan: Plan, progress: Progress
) -> Session:
    """Map the container, load the text side and open the program.

    Raises:
        OnebitError: a file changed since it was checked, or the device failed.
    """
    begun = time.monotonic()
    directory = Path(resolution.model)
    device, memory = resolution.device.device, resolution.memory
    if device is None or memory is None:
        raise RuntimeError("an unfinished resolution cannot be opened")
    progress("reading the tokenizer", 0, 3)
    text = load_text(directory, plan)
    progress("mapping the container", 1, 3)
    container = Container.open(directory / "model.q4nx")
    try:
        progress("opening the device", 2, 3)
        program = request.world.open_program(
            Opening(
                plan=plan,
                container=container,
                device=device,
                options=program_options(request.config, memory),
                npu=request.config.npu,
                kernels=resolution.device.kernels.path,
                isa=request.world.environ.get("ONEBIT_ISA", ""),
                device_root=request.world.device_root,
            )
        )
    except BaseException:
        container.close()
        text.close()
        raise
    limits = engine_limits(request.config)
    seconds = time.monotonic() - begun
    return Session(resolution, plan, program, text, limits, seconds, container)
