"""The HTTP server: OpenAI-compatible routes over one engine."""

from onebit.server.app import create_app
from onebit.server.state import ServedModel, ServerState

__all__ = ["ServedModel", "ServerState", "create_app"]
