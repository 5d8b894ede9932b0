"""What connections to a target need: TLS, open files; and a session for questions that nobody measures."""

from __future__ import annotations

import resource
import ssl
from typing import TYPE_CHECKING

from sre.adapters.load.wire import Target
from sre.errors import ConfigError

if TYPE_CHECKING:
    import aiohttp

IDLE_SECONDS = 3.0
"""A connection idle for longer is not used again: vLLM's server closes it after 5 s, maybe just as we send."""
SPARE_FILES = 64
"""Open files of a process beside its connections (our estimate)."""


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """
    Return what checks the server's certificate: the system's authorities, and those in ``ca_file``.

    Raises:
        ConfigError: The file cannot be read, or holds no certificate.
    """
    context = ssl.create_default_context()
    if ca_file is None:
        return context
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "not readable" if not isinstance(error, ssl.SSLError) else "holds no certificate"
        raise ConfigError(
            [f"gate.target.tls_ca_file: {ca_file}: {reason}; name a file with certificates in PEM form"]
        ) from None
    return context


def open_session(target: Target) -> aiohttp.ClientSession:
    """
    Return a session for ``target``; deadlines are the caller's.

    Raises:
        ConfigError: As ``tls_context``.
    """
    import aiohttp  # a load process does without: it starts in half the time

    # A connection for each question: some servers close an idle one at once, just as the next question is written.
    connector = aiohttp.TCPConnector(limit=0, ssl=tls_context(target.ca_file), force_close=True, ttl_dns_cache=300)
    return aiohttp.ClientSession(
        connector=connector,
        headers=target.headers(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        max_line_size=65536,
        max_field_size=65536,
    )


def room_for_connections(wanted: int) -> tuple[int, str]:
    """
    Raise this process's limit on open files for ``wanted`` connections, as far as the system lets it.

    Returns the connections possible, and a sentence if they are fewer ("" otherwise).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < need:
        soft = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted, ""
    possible = max(1, soft - SPARE_FILES)
    return possible, (
        f"a load process may have {soft} open files: at most {possible} requests in flight instead of {wanted}; "
        "raise it with ulimit -n"
    )
