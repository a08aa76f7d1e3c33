"""API keys, from the config and from a file."""

from __future__ import annotations

from onebit.config.api import ApiConfig
from onebit.findings import UsageError, Where, error


def api_keys(api: ApiConfig) -> tuple[str, ...]:
    """Return every key that the server takes.

    Raises:
        UsageError: the key file cannot be read or holds no key.
    """
    keys = [key.get_secret_value() for key in api.keys]
    if api.keys_file is None:
        return tuple(keys)
    try:
        lines = api.keys_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as bad:
        raise _bad_file(str(api.keys_file), f"The key file cannot be read: {bad}.") from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise _bad_file(str(api.keys_file), "The key file holds no key.")
    return (*keys, *found)


def _bad_file(path: str, what: str) -> UsageError:
    mend = "Write one key a line, readable by this user, or leave out api.keys_file."
    return UsageError(error("api.keys_file", what, mend, Where(file=path, field="api.keys_file")))
