"""Route `private`: models that an installed add-on serves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from onebit.config import RouteName, refused_fields
from onebit.config.walk import leaf_of
from onebit.findings import Finding, Refusal, Where, error
from onebit.routes.addons import GROUP, Addon, AddonModel, KnownAddon, known_addons
from onebit.routes.kv import PAGE_SIZE
from onebit.routes.request import Request, Verdict
from onebit.routes.resolution import DeviceChoice, Memory, Progress, Resolution
from onebit.routes.session import Session, engine_limits, program_options
from onebit.text import load_text

DEFAULT_CONTEXT = 4096
"""Context where neither ctx_size nor config.json names one."""


@dataclass(frozen=True, slots=True)
class _Match:
    """What the installed add-ons say to one directory."""

    why: str
    addon: Addon | None = None
    failure: str = ""
    """Why an add-on that is not optional failed to answer: the model is refused."""


class Private:
    """The route of private add-ons."""

    name: RouteName = "private"

    def examine(self, request: Request) -> Verdict:
        """Take a directory whose model_type an add-on serves and does not decline."""
        match = _match(request)
        return Verdict(match.addon is not None, match.why)

    def resolve(self, request: Request) -> Resolution:
        """Check the add-on's options and every setting."""
        match = _match(request)
        addon = match.addon
        if addon is None or match.failure:
            raise Refusal(_failed(match.why, request))
        findings = _bad_options(addon, request)
        findings += refused_fields(request.loaded, self.name, None, addon.honours)
        if findings:
            raise Refusal(findings)
        config = request.config
        context = config.ctx_size or _context(request.model_config)
        pages = -(-context // PAGE_SIZE) * config.engine.max_sequences
        resolution = Resolution(
            model=str(request.directory),
            name=request.name,
            route=self.name,
            trials=request.trials,
            device=DeviceChoice(
                asked=config.device, device=None, why=f"the add-on {addon.name} is its own device"
            ),
            numerics=config.numerics,
            memory=Memory(context=context, pages=pages, page_size=PAGE_SIZE, bytes=0),
            plan=None,
            settings=request.settings(),
        )

        def open_it(progress: Progress) -> Session:
            return _open(addon, request, resolution, progress)

        return resolution.with_opener(open_it)


def _match(request: Request) -> _Match:
    if request.model.kind != "directory":
        return _Match("the model is a GGUF file; add-ons serve directories")
    model_type = request.model_config.get("model_type")
    if not isinstance(model_type, str):
        return _Match("config.json names no model_type")
    reasons: list[str] = []
    for installed in request.world.addons():
        addon = installed.addon
        if addon is None:
            reasons.append(f"{installed.package} cannot be loaded: {installed.problem}")
        elif model_type in addon.model_types:
            match = _ask(addon, model_type, request)
            if match.addon is not None:
                return match
            reasons.append(match.why)
    return _Match("; ".join(reasons) or _nobody(model_type))


def _ask(addon: Addon, model_type: str, request: Request) -> _Match:
    try:
        declined = addon.decline(request.directory, request.model_config)
    except Exception as problem:  # an add-on's own code: its failure is its answer
        why = f"{addon.name} failed: {type(problem).__name__}: {problem}"
        return _Match(why) if addon.optional else _Match(why, addon, failure=why)
    if declined is not None:
        return _Match(f"{addon.name} declines: {declined}")
    return _Match(f"{addon.name} serves model_type {model_type}", addon)


def missing_addon(model_type: object) -> KnownAddon | None:
    """Return the known add-on for a model type, if there is one: nobody installed serves it."""
    return next((known for known in known_addons() if model_type in known.model_types), None)


def _nobody(model_type: str) -> str:
    known = missing_addon(model_type)
    if known is not None:
        return (
            f"model_type {model_type} is served by the add-on {known.package}, which is not "
            f"installed: pip install {known.package}"
        )
    return f"no add-on (entry point group {GROUP}) serves model_type {model_type}"


def _failed(why: str, request: Request) -> Finding:
    mend = "mend or uninstall the add-on, or force another route with `route:`"
    return error("route.addon_failed", why, mend, Where(file=str(request.directory)))


def _bad_options(addon: Addon, request: Request) -> list[Finding]:
    where = request.loaded.source("npu.options").where("npu.options")
    mend = f"see what the add-on {addon.name} takes"
    options = request.config.npu.options
    return [error("config.addon_option", what, mend, where) for what in addon.check(options)]


def _context(model_config: Any) -> int:
    value = model_config.get("max_position_embeddings")
    return value if isinstance(value, int) and value > 0 else DEFAULT_CONTEXT


def _open(addon: Addon, request: Request, resolution: Resolution, progress: Progress) -> Session:
    begun = time.monotonic()
    config = request.config
    if resolution.memory is None:
        raise RuntimeError("an add-on's resolution has a memory layout")
    progress(f"the add-on {addon.name} loads the model", 0, 2)
    settings = {name: leaf_of(name).value(config) for name in addon.honours}
    try:
        model: AddonModel = addon.open(
            request.directory,
            config.npu.options,
            settings,
            program_options(config, resolution.memory),
        )
    except Exception as problem:  # an add-on's own code: its failure refuses the model
        why = f"{addon.name} failed to open the model: {type(problem).__name__}: {problem}"
        raise Refusal(_failed(why, request)) from problem
    progress("reading the tokenizer", 1, 2)
    try:
        text = load_text(request.directory, model.plan)
    except BaseException:
        model.program.close()
        raise
    seconds = time.monotonic() - begun
    return Session(resolution, model.plan, model.program, text, engine_limits(config), seconds)
