"""Route `model-generic`: a container with its config and tokenizer, run by its plan, op by op."""

from __future__ import annotations

from collections.abc import Callable

from onebit.config import RouteName, refused_fields
from onebit.findings import Finding, Refusal, Severity
from onebit.plan.model import Plan
from onebit.routes.device import choose_device
from onebit.routes.kv import kv_bytes_per_token, lay_out
from onebit.routes.request import Request, Verdict
from onebit.routes.resolution import DeviceChoice, Progress, Resolution, summarise
from onebit.routes.session import Session, open_session

PARTS = ("model.q4nx", "config.json", "tokenizer.json")


class ModelGeneric:
    """The route of every container that a family manifest describes."""

    name: RouteName = "model-generic"

    def examine(self, request: Request) -> Verdict:
        """Take a directory that has the parts of a container."""
        if request.model.kind != "directory":
            return Verdict(False, "the model is a GGUF file, not a container's directory")
        missing = [part for part in PARTS if part not in request.files]
        if missing:
            return Verdict(False, f"the directory has no {', '.join(missing)}")
        return Verdict(True, f"the directory has {', '.join(PARTS)}")

    def resolve(self, request: Request) -> Resolution:
        """Check the directory, choose the device, prove that every setting is honoured."""
        return resolve_container(request, self.name)


def resolve_container(request: Request, route: RouteName) -> Resolution:
    """Resolve a container's directory; `route` is what the settings are judged by.

    Raises:
        Refusal: findings of the directory, the device, the settings or the KV memory.
    """
    manifest = request.manifest
    plan = manifest.plan
    if plan is None or not manifest.sound:
        raise Refusal([f for f in manifest.findings if f.severity is Severity.ERROR])
    device = choose_device(request.config, plan, request.directory, request.world)
    refused = refused_fields(request.loaded, route, device.device)
    if refused:
        raise Refusal(_with_reason(refused, device))
    memory, notes = lay_out(request.loaded, plan)
    per_token = kv_bytes_per_token(plan, request.config.engine.kv_dtype)
    resolution = Resolution(
        model=str(request.directory),
        name=request.name,
        route=route,
        trials=request.trials,
        device=device,
        numerics=request.config.numerics,
        streams=request.config.npu.streams,
        memory=memory,
        plan=summarise(
            plan, derived=manifest.plan_source != "plan.json", kv_bytes_per_token=per_token
        ),
        settings=request.settings(),
        findings=(*manifest.findings, *_slow(device), *notes),
    )
    return resolution.with_opener(_opener(request, resolution, plan))


def _slow(device: DeviceChoice) -> list[Finding]:
    return [finding for finding in device.findings if finding.severity is Severity.WARNING]


def _with_reason(refused: list[Finding], device: DeviceChoice) -> list[Finding]:
    """Add to each refusal why `auto` did not take the device that would honour it."""
    if device.asked != "auto":
        return refused
    why = f" (device: auto took {device.device}: {device.why})"
    return [finding.model_copy(update={"what": finding.what + why}) for finding in refused]


def _opener(request: Request, resolution: Resolution, plan: Plan) -> Callable[[Progress], Session]:
    def open_it(progress: Progress) -> Session:
        return open_session(request, resolution, plan, progress)

    return open_it
