"""A model directory becomes a typed, checked manifest."""

from onebit.manifest.inspect import inspect_directory
from onebit.manifest.json_file import read_json_object
from onebit.manifest.model import ContainerManifest, FileFacts, TemplateFacts, TokenizerFacts

__all__ = [
    "ContainerManifest",
    "FileFacts",
    "TemplateFacts",
    "TokenizerFacts",
    "inspect_directory",
    "read_json_object",
]
