"""Another server in place of a service's own: ``?endpoint=HOST`` or ``HOST:PORT``, always by HTTPS."""

from __future__ import annotations

import re
from logging import Logger

from apprise.exception import AppriseImproperlyConfigured

HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?")


def refused(logger: Logger, sentence: str) -> AppriseImproperlyConfigured:
    """Return the exception for a URL that cannot be used. The sentence is also logged, for Apprise swallows it."""
    logger.warning(sentence)
    return AppriseImproperlyConfigured(sentence)


def endpoint_of(value: str | None, logger: Logger) -> str | None:
    """Return the host in ``value``; None where there is none. Raises AppriseImproperlyConfigured."""
    if not value:
        return None
    if not HOST.fullmatch(value):
        raise refused(logger, "endpoint= is not HOST or HOST:PORT; write a host name only, it is asked by HTTPS")
    return value
