"""Takes the port before anything is loaded: a busy one ends the start within a second."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

from onebit.config import LoadedConfig
from onebit.findings import Finding, Refusal, error

BACKLOG = 1024


def bind(loaded: LoadedConfig) -> socket.socket:
    """Return a socket bound to the config's host and port, which does not answer yet.

    The port is never shared: neither SO_REUSEPORT nor a second listener is possible.

    Raises:
        Refusal: the address is not one of this machine, or the port is taken or not allowed.
    """
    host, port = loaded.config.host, loaded.config.port
    family, address = _address(loaded, host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Lets a restart follow at once; a port on which another process listens stays refused.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError as problem:
        sock.close()
        raise Refusal(_cannot_listen(loaded, problem)) from None
    return sock


def listen(loaded: LoadedConfig, sock: socket.socket) -> None:
    """Open the port.

    Raises:
        Refusal: another process took it meanwhile.
    """
    try:
        sock.listen(BACKLOG)
    except OSError as problem:
        raise Refusal(_cannot_listen(loaded, problem)) from None
    sock.setblocking(False)


def check_public(loaded: LoadedConfig, sock: socket.socket) -> None:
    """Keep a server without keys off the network.

    Raises:
        Refusal: the address is open to other machines, no key is set, and nobody allowed that.
    """
    api, address = loaded.config.api, sock.getsockname()[0]
    guarded = api.keys or api.keys_file is not None or api.public_without_key
    if guarded or ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return
    raise Refusal(
        error(
            "serve.public_without_key",
            f"{address} is open to other machines, and no API key is set",
            "set api.keys_file (or --api-key), or allow it with api.public_without_key: true",
            loaded.source("host").where("host"),
        )
    )


def url_of(sock: socket.socket) -> str:
    """Return the URL that a socket answers under."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _address(
    loaded: LoadedConfig, host: str, port: int
) -> tuple[socket.AddressFamily, tuple[str, int]]:
    numeric = re.fullmatch(r"[0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*", host) is not None
    flags = socket.AI_PASSIVE | (socket.AI_NUMERICHOST if numeric else 0)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (socket.gaierror, UnicodeError):
        what = f"{host} is no address or name that this machine knows"
        raise Refusal(_bad_host(loaded, what)) from None
    # IPv4 first: supervisors and clients reach 127.0.0.1, which ::1 does not answer.
    family, _, _, _, address = min(found, key=lambda item: item[0] != socket.AF_INET)
    return family, (str(address[0]), port)


def _cannot_listen(loaded: LoadedConfig, problem: OSError) -> Finding:
    host, port = loaded.config.host, loaded.config.port
    if problem.errno == errno.EADDRNOTAVAIL:
        return _bad_host(loaded, f"{host} is not an address of this machine")
    mend = "stop the program that uses it, or choose another --port"
    if problem.errno == errno.EACCES:
        mend = "choose a --port above 1023"
    reason = (problem.strerror or str(problem)).lower()
    where = loaded.source("port").where("port")
    return error("serve.port", f"cannot listen on {host}:{port}: {reason}", mend, where)


def _bad_host(loaded: LoadedConfig, what: str) -> Finding:
    mend = "use 127.0.0.1 for this machine alone, or 0.0.0.0 for every interface"
    return error("serve.bad_host", what, mend, loaded.source("host").where("host"))
