"""The resolver and the routes: from a config and a model to a running session.

resolution = resolve(load_config(file, environ, flags), World(environ))
session = resolution.open(progress)
"""

from onebit.routes.resolution import Resolution, RouteTrial
from onebit.routes.resolver import REGISTRY, Survey, resolve, survey
from onebit.routes.session import Session
from onebit.routes.world import World

__all__ = [
    "REGISTRY",
    "Resolution",
    "RouteTrial",
    "Session",
    "Survey",
    "World",
    "resolve",
    "survey",
]
