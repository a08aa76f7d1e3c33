"""What onebit says when something is wrong: findings, and the errors that carry them."""

from onebit.findings.errors import (
    DeviceError,
    InputError,
    KvLost,
    OnebitError,
    Refusal,
    UsageError,
)
from onebit.findings.model import Finding, Severity, Where, error, note, warning

__all__ = [
    "DeviceError",
    "Finding",
    "InputError",
    "KvLost",
    "OnebitError",
    "Refusal",
    "Severity",
    "UsageError",
    "Where",
    "error",
    "note",
    "warning",
]
