"""Logs that strangers cannot fill: what anybody can provoke is one line a minute, with how often it came."""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
import time
from collections.abc import Callable, Hashable
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

from sre.printable import one_line

AGAIN_SECONDS = 60.0
MOST_KEYS = 64
"""Kinds of lines told apart; more are one kind."""
LONGEST_REASON = 160
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Seldom:
    """Says when a line is due, and how many were left out since the last one."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, seconds: float = AGAIN_SECONDS) -> None:
        self._now, self._seconds = now, seconds
        self._kept: dict[Hashable, tuple[float, int]] = {}

    def due(self, key: Hashable) -> str | None:
        """Return what is added to the line, often nothing; None while it is silent."""
        if key not in self._kept and len(self._kept) >= MOST_KEYS:
            key = None
        now = self._now()
        silent_until, left_out = self._kept.get(key, (now, 0))
        if now < silent_until:
            self._kept[key] = silent_until, left_out + 1
            return None
        self._kept[key] = now + self._seconds, 0
        return f" (and {left_out} more like it since the last such line)" if left_out else ""


class HttpLog:
    """
    What aiohttp takes for its logger.

    aiohttp writes a traceback for every request that is not HTTP: a gigabyte an hour from one who keeps sending them.

    Args:
        what: The server, as lines begin: "webhook".
        malformed: Told of each request that is not HTTP.
    """

    def __init__(
        self,
        what: str,
        *,
        malformed: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._malformed = what, malformed
        self._log = logging.getLogger(f"sre.http.{what}")
        self._often = Seldom(now)

    def debug(self, message: str, *args: Any, exc_info: Any = None) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self._malformed()  # another protocol, e.g. TLS, where HTTP is spoken
        self._log.debug(message, *args, exc_info=exc_info)

    def exception(self, message: str, *args: Any, exc_info: Any = True) -> None:
        error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
        if isinstance(error, HttpProcessingError):
            self._malformed()
            more = self._often.due(HttpProcessingError)
            if more is not None:
                reason = one_line(error.message)[:LONGEST_REASON]
                self._log.warning("%s: a request that is not HTTP is refused: %s%s", self._what, reason, more)
            return
        more = self._often.due((message, type(error), _place(error)))
        if more is not None:
            self._log.error(f"%s: {message}%s", self._what, *args, more, exc_info=error)


def _place(error: BaseException | None) -> tuple[str, int] | None:
    """Where it was raised: two mistakes are not one."""
    trace = None if error is None else error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


class AcceptErrors:
    """
    An event loop's exception handler. Without it, each connection that cannot be accepted for want of open files is a
    traceback, hundreds a second for as long as they wait.
    """

    def __init__(
        self,
        before: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], Any] | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._before = before
        self._log = logging.getLogger("sre.http")
        self._often = Seldom(now)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "socket" in context and isinstance(error, OSError) and error.errno in EXHAUSTED:
            more = self._often.due(error.errno)
            if more is not None:
                self._log.error(
                    "connections wait and are not accepted: %s; raise the limit of open files (ulimit -n,"
                    " LimitNOFILE=)%s",
                    error.strerror or error,
                    more,
                )
        elif self._before is not None:
            self._before(loop, context)
        else:
            loop.default_exception_handler(context)


def condense_accept_errors() -> None:
    """Let the running loop say once a minute that connections cannot be accepted."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    if not isinstance(before, AcceptErrors):
        loop.set_exception_handler(AcceptErrors(before))
