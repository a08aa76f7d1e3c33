"""What onebit says when something is wrong: findings, and the errors that carry them."""

from onebit.findings.errors import (
    DeviceError,
    InputError,
    OnebitError,
    Refusal,
    UsageError,
)
from onebit.findings.model import Finding, Severity, Where, error, note, warning

__all__ = [
    "DeviceError",
    "Finding",
    "InputError",
    "OnebitError",
    "Refusal",
    "Severity",
    "UsageError",
    "Where",
    "error",
    "note",
    "warning",
]
