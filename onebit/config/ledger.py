"""The field ledger: which routes and devices honour which setting.

A setting that somebody set to something else than its default, and that the chosen route and
device would drop, is refused by name. A setting written out with its default value asks for what
happens anyway and is let through.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from onebit.config.honoured import Honoured
from onebit.config.load import LoadedConfig
from onebit.config.names import DEVICE_NUMERICS, DeviceName, RouteName
from onebit.config.walk import Leaf, leaves
from onebit.findings import Finding, error


class Entry(BaseModel):
    """One row of the ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="Dotted name in serve.yaml.")
    flag: str
    env: str
    routes: tuple[str, ...]
    devices: tuple[str, ...]
    unit: str
    default: Any
    description: str


class LedgerError(TypeError):
    """A field of `ServeConfig` has no ledger entry: a mistake in onebit, not of a user."""


def entry_of(leaf: Leaf) -> Honoured:
    """Return a setting's ledger entry.

    Raises:
        LedgerError: the field carries none.
    """
    if leaf.honoured is None:
        raise LedgerError(f"ServeConfig field {leaf.name} does not say who honours it")
    return leaf.honoured


def ledger() -> tuple[Entry, ...]:
    """Return the ledger: one entry for every field of the model itself."""
    return tuple(_entry(leaf) for leaf in leaves())


def _entry(leaf: Leaf) -> Entry:
    honoured = entry_of(leaf)
    return Entry(
        name=leaf.name,
        flag=leaf.flag,
        env=leaf.env,
        routes=honoured.routes,
        devices=honoured.devices,
        unit=honoured.unit,
        default=leaf.default,
        description=leaf.field.description or "",
    )


def is_honoured(
    leaf: Leaf,
    route: RouteName,
    device: DeviceName | None,
    *,
    value: Any = None,
    addon: Collection[str] = (),
    auto: bool = False,
) -> bool:
    """Whether setting `leaf` has its effect there.

    Args:
        leaf: the setting.
        route: the route taken.
        device: the device chosen; None on the private route, whose add-on is its own device.
        value: the value set: some values of `numerics` exist on some devices only.
        addon: settings that the private add-on declares to honour beyond the ledger.
        auto: whether `device: auto` made the choice.
    """
    honoured = entry_of(leaf)
    if route == "private":
        return route in honoured.routes or leaf.name in addon
    if route not in honoured.routes:
        return False
    if device is None or device in honoured.devices:
        return leaf.name != "numerics" or device is None or _does(device, value)
    return auto and honoured.decides


def _does(device: DeviceName, numerics: Any) -> bool:
    return numerics in (None, "auto", *DEVICE_NUMERICS[device])


def refused_fields(
    loaded: LoadedConfig,
    route: RouteName,
    device: DeviceName | None,
    addon: Collection[str] = (),
) -> list[Finding]:
    """Return a finding for each setting that was set and would be dropped there."""
    findings = []
    for leaf in leaves():
        value = leaf.value(loaded.config)
        if leaf.name not in loaded.sources or value == leaf.default:
            continue
        auto = loaded.config.device == "auto"
        if not is_honoured(leaf, route, device, value=value, addon=addon, auto=auto):
            findings.append(_refusal(leaf, value, loaded, route, device))
    return findings


def _refusal(
    leaf: Leaf, value: Any, loaded: LoadedConfig, route: RouteName, device: DeviceName | None
) -> Finding:
    place = f"route {route}" + (f" with device {device}" if device is not None else "")
    what = f"{leaf.name} = {value} has no effect on {place}"
    mend = f"{_who_honours(leaf, value, route)}, or take {leaf.name} out"
    return error("config.not_honoured", what, mend, loaded.source(leaf.name).where(leaf.name))


def _who_honours(leaf: Leaf, value: Any, route: RouteName) -> str:
    honoured = entry_of(leaf)
    if not honoured.routes:
        return "no route of onebit's own honours it, only a private add-on that declares it"
    if route not in honoured.routes:
        return f"route {' or '.join(honoured.routes)} honours it"
    devices = [d for d in honoured.devices if leaf.name != "numerics" or _does(d, value)]
    return f"it is honoured with device: {' or '.join(devices)}"
