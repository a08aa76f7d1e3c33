"""The error tree. Every error that may reach a user carries findings.

OnebitError
├── InputError    a file or value that onebit was given is wrong
├── UsageError    the command line or config is wrong
├── Refusal       the input is sound, but no route can serve it as asked
└── DeviceError   a device failed while it worked
    └── KvLost    its KV cache is gone, and nothing else
"""

from __future__ import annotations

from collections.abc import Sequence

from onebit.findings.model import Finding


class OnebitError(Exception):
    """Base of all errors that onebit raises on purpose; `findings` is never empty."""

    findings: tuple[Finding, ...]

    def __init__(self, findings: Finding | Sequence[Finding]) -> None:
        self.findings = (findings,) if isinstance(findings, Finding) else tuple(findings)
        if not self.findings:
            raise ValueError("an OnebitError needs at least one finding")
        super().__init__("\n".join(str(f) for f in self.findings))


class InputError(OnebitError):
    """A file or value given to onebit is wrong."""


class UsageError(OnebitError):
    """The command line, environment or config file is wrong."""


class Refusal(OnebitError):
    """No route can serve what was asked, as it was asked."""


class DeviceError(OnebitError):
    """A device failed during work. The step's requests end; the server lives on."""


class KvLost(DeviceError):
    """The KV cache of a program is gone: its device was started anew, and nothing ran.

    Steps can run again at once, after every sequence has been computed anew.
    """
