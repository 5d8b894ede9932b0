"""Who may post: a token, or user and password, also after they were replaced."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sre.clock import Clock
from sre.errors import ConfigError, StateError

log = logging.getLogger("sre.webhook")

OVERLAP_SECONDS = 300.0
"""
What was replaced is good for so long: the same secret reaches Alertmanager and us at different moments, and what is
refused as unauthorized is never sent again.
"""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What opens the webhook. One of both is enough."""

    token: str | None = None
    basic: tuple[str, str] | None = None
    """User and password."""

    def fits(self, authorization: str) -> bool:
        """Whether an Authorization header proves one of them; takes as long for a near miss as for any other."""
        scheme, _, rest = authorization.partition(" ")
        rest = rest.strip()
        given = rest.encode("utf-8", "surrogateescape")
        if scheme.lower() == "bearer" and self.token is not None:
            return _same(given, self.token.encode())
        if scheme.lower() == "basic" and self.basic is not None:
            try:
                shown = base64.b64decode(given, validate=True)
            except (binascii.Error, ValueError):
                return False
            return _same(shown, ":".join(self.basic).encode())
        return False


class Keyring:
    """
    The credentials in force.

    They are looked up anew whenever some do not fit, so that a replaced secret is good at once and costs no alert.

    Args:
        present: As found at the start.
        read: Looks them up; raises ConfigError or StateError where that cannot be done now.
    """

    def __init__(self, present: Credentials, read: Callable[[], Awaitable[Credentials]], clock: Clock) -> None:
        self._present, self._read, self._clock = present, read, clock
        self._replaced: tuple[Credentials, float] | None = None
        """Those before, and the monotonic time until which they are good."""
        self._looking = asyncio.Lock()
        self._looks = 0
        self._problem: str | None = None

    async def fits(self, authorization: str) -> bool:
        """
        Whether an Authorization header opens the webhook.

        Raises:
            StateError: Not known: it does not fit what was in force, and what is now cannot be looked up.
        """
        if self._opens(authorization):
            return True
        begun = self._looks
        async with self._looking:
            # A look that began after this one came is as good as one of its own.
            if self._looks == begun:
                await self._look()
        if self._opens(authorization):
            return True
        if self._problem is not None:
            raise StateError(self._problem)
        return False

    async def look(self) -> None:
        """Look them up now: what was replaced ends some time, though nobody shows anything else."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        self._looks += 1
        try:
            found = await self._read()
        except (ConfigError, StateError) as error:
            sentence = "; ".join(error.problems) if isinstance(error, ConfigError) else str(error)
            if sentence != self._problem:
                log.error("%s; what was in force stays in force", sentence)
            self._problem = sentence
            return
        self._problem = None
        if found != self._present:
            self._replaced = self._present, self._clock.monotonic() + OVERLAP_SECONDS
            self._present = found
            log.info("webhook: new credentials are in force; the old ones are good for %g s more", OVERLAP_SECONDS)

    def _opens(self, authorization: str) -> bool:
        if self._present.fits(authorization):
            return True
        if self._replaced is None:
            return False
        before, until = self._replaced
        return self._clock.monotonic() < until and before.fits(authorization)


def _same(given: bytes, wanted: bytes) -> bool:
    """Compared as digests: the time tells nothing, not even a length."""
    return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(wanted).digest())
