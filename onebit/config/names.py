"""The closed sets of names that a config speaks of."""

from __future__ import annotations

from typing import Literal, get_args

RouteName = Literal["private", "fast-lane", "model-generic", "gguf"]
"""Routes, in the order in which they are tried."""
DeviceName = Literal["cpu", "npu", "reference"]
NumericsName = Literal["auto", "f32", "i16", "i8", "int8-npu"]

ROUTES: tuple[RouteName, ...] = get_args(RouteName)
DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)

DEVICE_NUMERICS: dict[DeviceName, tuple[NumericsName, ...]] = {
    "cpu": ("f32", "i16", "i8"),
    "npu": ("int8-npu",),
    "reference": ("f32",),
}
"""The arithmetics that each device can do, beside `auto`."""
