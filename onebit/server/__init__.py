"""The HTTP server: OpenAI-compatible routes over one engine."""

from onebit.server.app import create_app
from onebit.server.serve import Server, run_server
from onebit.server.state import ServedModel, ServerState

__all__ = ["ServedModel", "Server", "ServerState", "create_app", "run_server"]
