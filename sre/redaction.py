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
SHORTEST_TOPIC = 6
"""The same for the path of ``CREDENTIAL_PATHS``."""
LONGEST_HOST = 11
"""A longer name without a dot, in the place of the host, is taken for a token, though it be made of letters alone."""
LONGEST_WORD = 15
"""A longer part of a URL is taken for a token, whatever it is made of."""

HOSTED = frozenset({"mailto", "json", "xml", "form", "http", "smtp", "gotify", "ntfy", "mqtt"})
"""Apprise schemes (some also with an s) whose host is one; elsewhere a host without a dot is a token."""

CREDENTIAL_PATHS = frozenset({
    "bark", "dingtalk", "discord", "feishu", "flock", "fluxer", "gchat", "gotify", "guilded", "ifttt", "kook",
    "lark", "mmost", "msteams", "notica", "ntfy", "revolt", "rocket", "ryver", "slack", "spike", "splunk",
    "spugpush", "squadcast", "synology", "tgram", "victorops", "wecombot", "workflow", "workflows",
})  # fmt: skip
"""Apprise schemes (some also with an s) where whoever knows the path may post or read: a topic, a key, a webhook."""

ROUTE_WORDS = frozenset({
    "alert", "alertmanager", "alerts", "channel", "channels", "default", "endpoint", "endpoints", "event",
    "events", "generic", "grafana", "hook", "hooks", "incident", "incidents", "incoming", "integration",
    "integrations", "invoke", "message", "messages", "notification", "notifications", "notify", "prometheus",
    "public", "publish", "receiver", "receivers", "robot", "service", "services", "trigger", "triggers",
    "webhook", "webhooks", "workflow", "workflows",
})  # fmt: skip
"""Parts of a path that say what is there, and open nothing."""

_ADDRESS = re.compile(r"[^@\s]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_REGION = re.compile(r"(us|eu|ap|ca|sa|me|af|cn|il|mx)-(gov-)?(north|south|east|west|central)+-\d")

_SECRET_KEY = re.compile(r"(?i)(key|token|secret|pass(wd|word)?|pwd|auth|signature)")


def secrets_of_url(url: str) -> frozenset[str]:
    """
    Return every part of a channel's URL that may be a credential, as written and decoded: the whole, the password,
    whatever looks like a token, and the longer parts of the path: a topic or a webhook may be called by a plain word.
    No scheme, no host, no address, no word of a route, elsewhere no plain word: people need to read those.
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
    schemes = {parts.scheme, parts.scheme.removesuffix("s")}
    shortest = SHORTEST_TOKEN if CREDENTIAL_PATHS.isdisjoint(schemes) else SHORTEST_TOPIC
    name, _, port = host.partition(":")
    if "ntfy" in schemes and not parts.path.strip("/") and "." not in name:
        found |= _of_path(name, shortest)  # ntfy://topic
    if HOSTED.isdisjoint(schemes) and not host.startswith("["):
        if not port.isdigit():
            found.add(port)  # tgram://123456:token
        if "." not in name:
            found |= _tokens(name) | ({name} if len(name) > LONGEST_HOST else set())
    tokens = {token for part in parts.path.split("/") for token in _of_path(part, shortest)}
    # A secret may hold a slash, as those of AWS do.
    found |= tokens | ({parts.path.strip("/")} if tokens else set())
    for pair in parts.query.split("&"):
        key, _, value = pair.partition("=")
        found |= {value} if _SECRET_KEY.search(key) and len(value) >= SHORTEST_SECRET else _tokens(value)
    return frozenset(one for part in {url, *found - {""}} for one in (part, unquote(part)))


def _of_path(part: str, shortest: int) -> set[str]:
    """Return ``part`` of a path unless people need to read it."""
    read = unquote(part)
    known = read.lower() in ROUTE_WORDS or _ADDRESS.fullmatch(read) or _REGION.fullmatch(read)
    return set() if len(read) < shortest or known else {part}


def _tokens(part: str) -> set[str]:
    """Return ``part`` if it may be a token: not if it is a word, or an address that people know each other by."""
    read = unquote(part)
    if len(read) < SHORTEST_TOKEN or _ADDRESS.fullmatch(read):
        return set()
    if re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}", read) and len(read) <= 2 * LONGEST_WORD:
        return set()  # the name of a host
    if re.fullmatch(r"[a-z]+([-_][a-z]+)*[-_]?\d{0,2}", read) and len(read) <= LONGEST_WORD:
        return set()  # a word, or a name such as us-east-1
    mixed = any(c.isdigit() for c in read) or any(c.isupper() for c in read[1:])
    return {part} if mixed or len(read) > LONGEST_WORD else set()
