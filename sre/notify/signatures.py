"""How requests to Aliyun and Tencent Cloud are signed. Sources: their published descriptions of V3 signatures."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote

ALIYUN_ALGORITHM = "ACS3-HMAC-SHA256"
TENCENT_ALGORITHM = "TC3-HMAC-SHA256"


def canonical_query(parameters: Mapping[str, str]) -> str:
    """Return ``parameters`` sorted and encoded as RFC 3986 says: what is signed is also what is sent."""
    return "&".join(f"{quote(name, safe='~')}={quote(parameters[name], safe='~')}" for name in sorted(parameters))


def aliyun_authorization(
    *, key_id: str, secret: str, query: str, headers: Mapping[str, str], body: bytes = b"", method: str = "POST"
) -> str:
    """
    Return the Authorization header of a request to an RPC interface of Aliyun.

    Args:
        query: As ``canonical_query`` returns it.
        headers: All that are signed, names in lower case: host, x-acs-*.
    """
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    canonical = "\n".join((method, "/", query, lines, names, _sha256(body)))
    signature = hmac.new(
        secret.encode(), f"{ALIYUN_ALGORITHM}\n{_sha256(canonical.encode())}".encode(), hashlib.sha256
    ).hexdigest()
    return f"{ALIYUN_ALGORITHM} Credential={key_id},SignedHeaders={names},Signature={signature}"


def tencent_authorization(
    *, secret_id: str, secret_key: str, service: str, host: str, content_type: str, timestamp: int, body: bytes
) -> str:
    """Return the Authorization header of a POST to Tencent Cloud's API 3.0. ``timestamp``: Unix time in seconds."""
    date = datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d")
    scope = f"{date}/{service}/tc3_request"
    names = "content-type;host"
    canonical = f"POST\n/\n\ncontent-type:{content_type}\nhost:{host}\n\n{names}\n{_sha256(body)}"
    to_sign = f"{TENCENT_ALGORITHM}\n{timestamp}\n{scope}\n{_sha256(canonical.encode())}"
    key = f"TC3{secret_key}".encode()
    for part in (date, service, "tc3_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    return f"{TENCENT_ALGORITHM} Credential={secret_id}/{scope}, SignedHeaders={names}, Signature={signature}"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
