"""The wish to serve, typed: `ServeConfig`, where its values came from, and the field ledger."""

from onebit.config.ledger import Entry, is_honoured, ledger, refused_fields
from onebit.config.load import LoadedConfig, load_config
from onebit.config.names import DEVICES, ROUTES, DeviceName, NumericsName, RouteName
from onebit.config.serve import ServeConfig
from onebit.config.sources import Source

__all__ = [
    "DEVICES",
    "ROUTES",
    "DeviceName",
    "Entry",
    "LoadedConfig",
    "NumericsName",
    "RouteName",
    "ServeConfig",
    "Source",
    "is_honoured",
    "ledger",
    "load_config",
    "refused_fields",
]
