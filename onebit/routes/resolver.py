"""The resolver: a config and a model become a `Resolution`, or a refusal that says why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onebit.config import LoadedConfig
from onebit.families import family_for
from onebit.findings import Finding, InputError, Refusal, Severity, Where, error
from onebit.routes.base import Route
from onebit.routes.fast_lane import FastLane
from onebit.routes.gguf import Gguf
from onebit.routes.model_generic import ModelGeneric
from onebit.routes.model_path import find_model
from onebit.routes.private import Private, missing_addon
from onebit.routes.request import Request
from onebit.routes.resolution import Resolution, RouteTrial
from onebit.routes.world import World

REGISTRY: tuple[Route, ...] = (Private(), FastLane(), ModelGeneric(), Gguf())
"""Every route, in the order in which they are tried."""


def resolve(loaded: LoadedConfig, world: World | None = None) -> Resolution:
    """Map a config to what will run.

    Routes are tried in order and the first that takes the model decides; `route:` asks one only.

    Raises:
        Refusal: no route takes the model, or the one that does cannot serve it as it was asked.
            All findings come at once.
    """
    request = request_for(loaded, world or World())
    trials: list[RouteTrial] = []
    for route in REGISTRY:
        forced = request.config.route
        if forced not in ("auto", route.name):
            why = f"not tried: the config asks for route {forced}"
            trials.append(RouteTrial(route=route.name, taken=False, why=why))
            continue
        verdict = route.examine(request)
        trials.append(verdict.trial(route.name))
        if verdict.taken:
            try:
                return route.resolve(replace(request, trials=tuple(trials)))
            except Refusal as refusal:
                raise Refusal([*refusal.findings, *_addon_hint(request)]) from refusal
    raise Refusal(_nobody(request, trials))


def request_for(loaded: LoadedConfig, world: World) -> Request:
    """Return what the routes are asked.

    Raises:
        Refusal: the config names no model, or there is none at that path.
    """
    path = loaded.config.model
    if path is None:
        raise Refusal(
            error(
                "model.none",
                "no model is named",
                "give one: -m PATH, or `model: PATH` in the config file",
                Where(field="model"),
            )
        )
    return Request(loaded, find_model(path), world)


@dataclass(frozen=True, slots=True)
class Survey:
    """What every route says about a model, as `validate` reports it."""

    trials: tuple[RouteTrial, ...]
    resolution: Resolution | None
    """What `serve` would run; None when the model is not servable."""
    findings: tuple[Finding, ...]
    """Why it is not servable; else warnings and notes."""


def survey(request: Request) -> Survey:
    """Ask every route on its own. The first that takes the model decides, as in `resolve`."""
    trials: list[RouteTrial] = []
    decided: Resolution | None = None
    for route in REGISTRY:
        first = not any(trial.taken for trial in trials)
        trial, resolution = _ask(route, replace(request, trials=tuple(trials)))
        trials.append(trial)
        if first:
            decided = resolution
    taken = next((trial for trial in trials if trial.taken), None)
    if decided is not None:
        findings: tuple[Finding, ...] = decided.findings
    else:
        findings = taken.findings if taken is not None else tuple(_nobody(request, trials))
    return Survey(tuple(trials), decided, findings)


def _ask(route: Route, request: Request) -> tuple[RouteTrial, Resolution | None]:
    trial = route.examine(request).trial(route.name)
    if not trial.taken:
        return trial, None
    try:
        return trial, route.resolve(replace(request, trials=(*request.trials, trial)))
    except (Refusal, InputError) as refusal:
        return trial.model_copy(update={"findings": refusal.findings}), None


def _addon_hint(request: Request) -> list[Finding]:
    """Name the add-on that a model of an unknown family lacks."""
    model_type = request.model_config.get("model_type") if request.model_config else None
    known = missing_addon(model_type)
    if known is None or not isinstance(model_type, str) or family_for(model_type) is not None:
        return []
    where = Where(file=str(request.directory / "config.json"), field="model_type")
    what = f"model_type {model_type} is served by the add-on {known.package}, not installed here"
    return [error("route.addon_missing", what, f"pip install {known.package}", where)]


def _nobody(request: Request, trials: list[RouteTrial]) -> list[Finding]:
    """Say why no route takes the model, and what is wrong with it if it is half a container."""
    where = Where(file=str(request.model.path))
    findings = []
    half = request.model.kind == "directory" and request.files & {"model.q4nx", "config.json"}
    if half and request.config.route in ("auto", "model-generic"):
        findings += [f for f in request.manifest.findings if f.severity is Severity.ERROR]
    tried = "; ".join(f"{trial.route}: {trial.why}" for trial in trials)
    mend = "give a directory with model.q4nx, config.json and tokenizer.json, or a .gguf file"
    if findings:
        mend = "mend the findings above"
    return [*findings, error("route.none", f"no route takes this model ({tried})", mend, where)]
