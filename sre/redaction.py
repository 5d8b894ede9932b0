"""Taking secrets out of text before it is written down or shown."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection
from urllib.parse import unquote, urlsplit

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


SHORTEST_TOKEN = 8
LONGEST_WORD = 15
"""A longer part of a URL is taken for a token, whatever it is made of."""

HOSTED = frozenset({"mailto", "json", "xml", "form", "http", "smtp", "gotify", "ntfy", "mqtt"})
"""Apprise schemes (some also with an s) whose host is one; elsewhere a host without a dot is a token."""

_SECRET_KEY = re.compile(r"(?i)(key|token|secret|pass(wd|word)?|pwd|auth|signature)")


def secrets_of_url(url: str) -> frozenset[str]:
    """
    Return every part of a channel's URL that may be a credential, as written and decoded: the whole, the password, and
    whatever looks like a token. No scheme, no host, no address, no plain word: people need to read those.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return frozenset({url, unquote(url)})
    found: set[str] = set()
    login, at, host = parts.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    found.add(password)
    found |= _tokens(user)
    if at and colon:
        found.add(base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode("utf-8", "replace")).decode())
    if HOSTED.isdisjoint({parts.scheme, parts.scheme.removesuffix("s")}) and not host.startswith("["):
        name, _, port = host.partition(":")
        if not port.isdigit():
            found.add(port)  # tgram://123456:token
        if "." not in name:
            found |= _tokens(name)
    tokens = {token for part in parts.path.split("/") for token in _tokens(part)}
    # A secret may hold a slash, as those of AWS do.
    found |= tokens | ({parts.path.strip("/")} if tokens else set())
    for pair in parts.query.split("&"):
        key, _, value = pair.partition("=")
        found |= {value} if _SECRET_KEY.search(key) and len(value) >= SHORTEST_SECRET else _tokens(value)
    return frozenset(one for part in {url, *found - {""}} for one in (part, unquote(part)))


def _tokens(part: str) -> set[str]:
    """Return ``part`` if it may be a token: not if it is a word, or an address that people know each other by."""
    read = unquote(part)
    if len(read) < SHORTEST_TOKEN or re.fullmatch(r"[^@\s]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", read):
        return set()
    if re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}", read) and len(read) <= 2 * LONGEST_WORD:
        return set()  # the name of a host
    if re.fullmatch(r"[a-z]+([-_][a-z]+)*[-_]?\d{0,2}", read) and len(read) <= LONGEST_WORD:
        return set()  # a word, or a name such as us-east-1
    mixed = any(c.isdigit() for c in read) or any(c.isupper() for c in read[1:])
    return {part} if mixed or len(read) > LONGEST_WORD else set()
