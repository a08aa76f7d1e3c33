"""Reads and writes plan.json."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from onebit.findings import InputError, Where, error
from onebit.plan.model import PLAN_SCHEMA, Plan

_MEND = "write it anew with `onebit plan DIR --write`, or delete it: onebit derives a plan itself"
MAX_BYTES = 64 << 20


def read_plan(path: Path) -> Plan:
    """Read a plan.json.

    Raises:
        InputError: missing, not JSON, of another schema version, or not a plan.
    """
    where = Where(file=str(path))
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(error("plan.too_large", f"is over {MAX_BYTES} bytes", _MEND, where))
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as cause:
        place = Where(file=str(path), line=cause.lineno, column=cause.colno)
        raise InputError(error("plan.json", f"is not JSON: {cause.msg}", _MEND, place)) from cause
    except (OSError, UnicodeDecodeError, RecursionError, ValueError) as cause:
        raise InputError(
            error("plan.unreadable", f"cannot be read: {cause}", _MEND, where)
        ) from cause
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != PLAN_SCHEMA:
        what = f"has schema version {version!r}, this onebit reads {PLAN_SCHEMA}"
        raise InputError(error("plan.schema", what, _MEND, where))
    try:
        return Plan.model_validate(data)
    except ValidationError as cause:
        raise InputError(
            [
                error(
                    "plan.field",
                    problem["msg"],
                    _MEND,
                    Where(file=str(path), field=".".join(str(p) for p in problem["loc"])),
                )
                for problem in cause.errors()[:20]
            ]
        ) from cause


def plan_text(plan: Plan) -> str:
    """Return plan.json's text: the same plan gives the same bytes."""
    return json.dumps(plan.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def write_plan(plan: Plan, path: Path) -> None:
    """Write plan.json atomically (temporary file, fsync, rename)."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(plan_text(plan))
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def plan_differences(stored: Plan, derived: Plan) -> list[str]:
    """Return the top-level fields in which a stored plan disagrees with a derived one.

    Provenance is left out: it does not change what runs.
    """
    names = (n for n in Plan.model_fields if n != "provenance")
    return [n for n in names if getattr(stored, n) != getattr(derived, n)]
