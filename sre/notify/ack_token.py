"""
A link that acknowledges one incident until a moment, and nothing else: its token is signed.

Wire: ``EXPIRES.SIGNATURE``: Unix time in whole seconds, and HMAC-SHA256 (URL-safe Base64 without padding) over the
purpose, that time and the incident's id. The id itself stands elsewhere in the link.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import re

PURPOSE = "sre-ack-1"
"""Signed with the rest: a signature made for another use of the same secret opens nothing here."""

SHORTEST_SECRET = 16
"""Bytes. A shorter one can be guessed from a single link."""

LONGEST_TOKEN = 80

_FORM = re.compile(r"([0-9]{1,12})\.([A-Za-z0-9_-]{43})", re.ASCII)


class TokenVerdict(enum.Enum):
    """What a token is worth."""

    GOOD = "good"
    EXPIRED = "expired"  # it was good once
    BAD = "bad"


def ack_token(incident_id: str, expires_wall: float, secret: bytes) -> str:
    """
    Return the token that acknowledges ``incident_id`` before ``expires_wall``.

    Raises:
        ValueError: The secret is too short.
    """
    expires = int(expires_wall)
    return f"{expires}.{_signature(incident_id, expires, secret)}"


def verify_ack_token(token: str, incident_id: str, now_wall: float, secret: bytes) -> TokenVerdict:
    """
    Return what ``token`` is worth for ``incident_id``. Takes as long for a wrong signature as for a right one.

    Raises:
        ValueError: The secret is too short.
    """
    match = _FORM.fullmatch(token) if len(token) <= LONGEST_TOKEN else None
    expires, given = (int(match[1]), match[2]) if match else (0, "")
    if not hmac.compare_digest(_signature(incident_id, expires, secret).encode(), given.encode()):
        return TokenVerdict.BAD
    return TokenVerdict.GOOD if now_wall < expires else TokenVerdict.EXPIRED


def _signature(incident_id: str, expires: int, secret: bytes) -> str:
    if len(secret) < SHORTEST_SECRET:
        raise ValueError(f"the secret has {len(secret)} bytes; use at least {SHORTEST_SECRET}")
    # The id comes last: it may hold anything, and cannot be taken for one of the others.
    signed = f"{PURPOSE}\n{expires}\n{incident_id}".encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(hmac.digest(secret, signed, hashlib.sha256)).rstrip(b"=").decode()
