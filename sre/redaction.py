"""Taking secrets out of text before it is written down or shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN = "<hidden>"

SHORTEST_SECRET = 4
"""Shorter values are not hidden by value: they would eat ordinary words."""

Redact = Callable[[str], str]

_PATTERNS = (
    (re.compile(r"(?i)\b(authorization|proxy-authorization|x-api-key)(['\"]?\s{0,8}[:=]\s{0,8}['\"]?)(?:(bearer|basic)\s+)?[^\s,;'\"]+"),
     rf"\1\2{HIDDEN}"),
    (re.compile(r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{8,}"), f"Bearer {HIDDEN}"),
    (re.compile(r"(?i)((?:api[_-]?key|token|secret|passw(?:or)?d)\b['\"]?\s{0,8}[:=]\s{0,8}['\"]?)[^\s,;'\"&]{4,}"),
     rf"\1{HIDDEN}"),
    (re.compile(r"(?<=://)[^/@\s]+@"), f"{HIDDEN}@"),
)  # fmt: skip
# No pattern begins with a repetition: a megabyte of log must take no longer than its length asks for.


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """Return ``text`` without ``secrets`` and without what looks like a credential."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def secrets_of_url(url: str) -> frozenset[str]:
    """
    Return every part of a channel's URL that may be a credential: the whole, user, password, longer path parts and
    query values, each as written and decoded. Scheme and host are none.
    """
    found = {url}
    try:
        parts = urlsplit(url)
        found.update(filter(None, (parts.username, parts.password)))
    except ValueError:
        return frozenset(found)
    # In most Apprise URLs of chat and SMS services the host or the path is a token; a short path part is a route.
    found.update(part for part in parts.path.split("/") if len(part) >= 8)
    found.update(value for _, value in parse_qsl(parts.query) if len(value) >= 8)
    if "." not in parts.netloc and ":" not in parts.netloc and len(parts.netloc) >= 12:
        found.add(parts.netloc)
    return frozenset(found | {unquote(part) for part in found})
