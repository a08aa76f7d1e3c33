"""What a field's own metadata says about who honours it."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from onebit.config.names import DEVICES, DeviceName, RouteName

SERVING: tuple[RouteName, ...] = ("private", "model-generic", "gguf")
"""Routes that end in a running server."""
PLANNED: tuple[RouteName, ...] = ("model-generic", "gguf")
"""Routes that run a plan on one of onebit's own devices."""


@dataclass(frozen=True, slots=True)
class Honoured:
    """Ledger entry of one `ServeConfig` field, attached with `Annotated`.

    The JSON Schema carries it as `x-routes`, `x-devices` and `x-unit`.
    """

    routes: tuple[RouteName, ...] = SERVING
    """Routes on which the field has its effect. An add-on of the private route may declare more."""
    devices: tuple[DeviceName, ...] = DEVICES
    """Devices on which it has; a private add-on is its own device and is not asked for these."""
    unit: str = ""
    """Unit of the value: bytes, seconds, tokens."""
    flag: str = ""
    """Command line flag where it is not the dotted name with dashes."""
    decides: bool = False
    """Whether it also has its effect while `device: auto` makes its choice."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the entry to the field's JSON Schema."""
        schema = handler(core_schema)
        schema["x-routes"] = list(self.routes)
        schema["x-devices"] = list(self.devices)
        if self.unit:
            schema["x-unit"] = self.unit
        return schema
