"""A finding: one fact about an input, where it stands and what mends it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Severity(StrEnum):
    """How much a finding weighs. Only an `error` makes a directory unservable."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Where(BaseModel):
    """The place a finding speaks of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str | None = Field(default=None, description="Path of the file, as the user named it.")
    field: str | None = Field(
        default=None, description="Key, tensor name or option inside the file, dotted."
    )
    line: int | None = Field(default=None, description="Line in a text file, from 1.")
    column: int | None = Field(default=None, description="Column in that line, from 1.")
    offset: int | None = Field(default=None, description="Byte offset in a binary file.")

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}"
            if self.column is not None:
                place += f":{self.column}"
        if self.offset is not None:
            place += f" at byte {self.offset}"
        if self.field is not None:
            place = f"{place}: {self.field}" if place else self.field
        return place


class Finding(BaseModel):
    """One thing that onebit found, as data: printed by `validate`, raised by `serve`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str = Field(
        description="Stable name of the kind of finding, for example `container.truncated`.",
        pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$",
    )
    severity: Severity = Field(description="`error`, `warning` or `note`.")
    where: Where = Field(default_factory=Where, description="The place it speaks of.")
    what: str = Field(description="What was found and what was expected, in one or two sentences.")
    mend: str = Field(default="", description="The edit or command that mends it; empty for notes.")

    def __str__(self) -> str:
        place = str(self.where)
        head = f"{self.severity.value}: " + (f"{place}: " if place else "") + self.what
        tail = f" -> {self.mend}" if self.mend else ""
        return f"{head}{tail} [{self.code}]"


def _make(severity: Severity, code: str, what: str, mend: str, where: Where | None) -> Finding:
    return Finding(code=code, severity=severity, where=where or Where(), what=what, mend=mend)


def error(code: str, what: str, mend: str, where: Where | None = None) -> Finding:
    """Return an error finding; `mend` is required because every refusal says how to go on."""
    return _make(Severity.ERROR, code, what, mend, where)


def warning(code: str, what: str, mend: str = "", where: Where | None = None) -> Finding:
    """Return a warning finding: servable, but the user should know."""
    return _make(Severity.WARNING, code, what, mend, where)


def note(code: str, what: str, where: Where | None = None) -> Finding:
    """Return a note: a fact worth saying, nothing to mend."""
    return _make(Severity.NOTE, code, what, "", where)
