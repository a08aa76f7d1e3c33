"""A plan and a resolution in short, as lines of text."""

from __future__ import annotations

from collections.abc import Collection

from onebit.cli.output import size, table
from onebit.findings import Finding
from onebit.plan.model import Plan
from onebit.routes.kv import kv_bytes_per_token
from onebit.routes.resolution import PlanSummary, Resolution, RouteTrial, Setting, summarise


def plan_lines(plan: Plan) -> list[str]:
    """Return a plan in short."""
    per_token = kv_bytes_per_token(plan, "f32")
    return summary_lines(summarise(plan, derived=True, kv_bytes_per_token=per_token))


def summary_lines(plan: PlanSummary) -> list[str]:
    """Return a plan's summary as lines."""
    dims = ", ".join(f"{name} {value}" for name, value in plan.dims.items())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(plan.kinds.items()))
    rows = [
        ("family", f"{plan.family} (model_type {plan.model_type})"),
        ("dims", dims),
        ("tensors", kinds),
        ("gemms", ", ".join(plan.gemms)),
        ("kv", f"{size(plan.kv_bytes_per_token)} a token"),
    ]
    return table(rows)


def trial_lines(trials: tuple[RouteTrial, ...], shown: Collection[Finding] = ()) -> list[str]:
    """Return one line for each route that was tried, and its findings but those `shown` before."""
    lines = []
    for trial in trials:
        mark = "takes it" if trial.taken and not trial.findings else "no"
        if trial.taken and trial.findings:
            mark = "refuses"
        lines.append(f"  {trial.route:<14} {mark:<9} {trial.why}")
        lines += [f"    {finding}" for finding in trial.findings if finding not in shown]
    return lines


def setting_lines(settings: tuple[Setting, ...]) -> list[str]:
    """Return every setting with its value and where it came from."""
    rows = [(s.name, _value(s.value), s.source) for s in settings]
    return ["settings", *table(rows, indent="  ")]


def resolution_lines(resolution: Resolution) -> list[str]:
    """Return the whole decision, as `explain` prints it."""
    lines = setting_lines(resolution.settings)
    lines += ["", "routes, in the order in which they are tried"]
    lines += [
        f"  {t.route:<14} {'taken' if t.taken else 'passed':<7} {t.why}" for t in resolution.trials
    ]
    device = resolution.device
    lines += ["", f"device: {device.device or 'not decided yet'} (asked: {device.asked})"]
    lines.append(f"  {device.why}")
    if device.kernels.searched:
        lines.append("kernels")
        lines += [f"  {p.place}: {p.path or '-'}: {p.why}" for p in device.kernels.searched]
    memory = resolution.memory
    if memory is not None:
        lines.append(
            f"context: {memory.context} tokens; KV cache of {memory.pages} pages of "
            f"{memory.page_size}, at most {size(memory.bytes)}"
        )
    lines.append(f"numerics: {resolution.numerics}")
    if resolution.plan is not None:
        origin = "derived, no plan.json" if resolution.plan.derived else "plan.json"
        lines += ["", f"plan ({origin})"]
        lines += [f"  {line}" for line in summary_lines(resolution.plan)]
    if resolution.findings:
        lines += ["", "findings", *(f"  {finding}" for finding in resolution.findings)]
    lines += ["", f"serves {resolution.model} as {resolution.name} on route {resolution.route}"]
    return lines


def _value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
