"""Addresses of systems we talk to, as they are written in options and settings."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from sre.errors import ConfigError


def checked_url(url: str, option: str = "--url", *, example: str = "http://host:9090", query: bool = False) -> str:
    """
    Return the http(s) address without blanks around it and without slashes at its end.

    Args:
        option: Where it is written, for messages.
        query: ``?…`` may follow.

    Raises:
        ConfigError: It is none, or holds credentials, or more than an address. No password is in the message.
    """
    url = url.strip()
    shown = re.sub(r"//.*@", "//…@", url)
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, named = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not named or re.search(r"\s", url) or not url.isprintable():
        raise ConfigError([f"{option}: {shown!r} is no URL; write it like {example}"])
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            [f"{option}: {shown!r} holds credentials: a secret is never written here; leave user and password out, and"
             " name a token as env:NAME or file:/path"]
        )  # fmt: skip
    for sign, there in (("#", parts.fragment), ("?", parts.query and not query)):
        if there:
            raise ConfigError([f"{option}: {shown!r}: leave out what follows {sign}; write it like {example}"])
    return url.rstrip("/")


def exposes_secrets(url: str) -> bool:
    """Whether what is sent to ``url`` crosses a network in the clear."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not _is_here(parts.hostname or "")


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
