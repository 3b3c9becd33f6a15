"""What a server listens on: the socket, how many of them this process may have, and TLS.

Every fault is one sentence, before anything slow has happened.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
from typing import TYPE_CHECKING

from qwen3app.errors import UsageError

if TYPE_CHECKING:
    import ssl

    from qwen3app.guards import GuardSettings

BACKLOG = 2048
_MAX_FILES = 65_536


def raise_file_limit() -> None:
    """Takes as many open files as the system lets this process have: each client is one, and the usual 1,024 are fewer
    than a full queue."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, or one sentence."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            f"The host {host!r} of --addr cannot be resolved ({error}); use an address of this machine."
        ) from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise UsageError(bind_sentence(host, port, error)) from None
    return listener


def bind_sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use; stop the program that has it, or choose another with --port."
    if error.errno == errno.EACCES:
        return f"Port {port} may not be opened by this user; choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine; use 127.0.0.1, 0.0.0.0 or one of its own with --addr."
    return f"{host}:{port} cannot be listened on: {error.strerror}."


def tls_context(guards: GuardSettings) -> ssl.SSLContext | None:
    """For HTTPS, or None where it is not asked for; one sentence where the files do not serve."""
    if guards.tls_cert is None or guards.tls_key is None:
        return None
    import ssl

    for flag, path in (("--tls-cert", guards.tls_cert), ("--tls-key", guards.tls_key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise UsageError(f"The file {path} of {flag} cannot be read: {error.strerror}.") from None

    def no_passphrase() -> str:
        raise UsageError(f"The key {guards.tls_key} of --tls-key has a passphrase; give one that has none.")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(guards.tls_cert, guards.tls_key, no_passphrase)
    except ssl.SSLError as error:
        raise UsageError(
            f"{guards.tls_cert} and {guards.tls_key} are no certificate chain and its private key, both as PEM "
            f"({error.reason or error})."
        ) from None
    return context
