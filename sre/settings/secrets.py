"""Secrets: resolved only where they are used, hidden wherever settings are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sre.errors import ConfigError, SecretMissing
from sre.redaction import HIDDEN
from sre.settings.base import SECRET_REFERENCE, expanded

MAX_SECRET_BYTES = 64 * 1024

_SECRET_NAME = re.compile(
    r"(^|[_-])(api_?key|key|token|secret|password|passwd|pass|pwd|credentials?|auth)([_-]|$)", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name usually holds a secret: ``HF_TOKEN``, ``AWS_SECRET_ACCESS_KEY`` …"""
    return _SECRET_NAME.search(name) is not None


def resolve_secret(reference: str, where: str, environ: Mapping[str, str]) -> str:
    """
    The secret that ``reference`` (``env:NAME`` or ``file:/path``) points to; trailing line ends are dropped.

    Args:
        reference: As written in sre.yaml.
        where: The setting, for messages: ``notify.channels[0].url``.
        environ: The environment to look in.

    Raises:
        SecretMissing: Not set, no such file, or empty.
        ConfigError: Not readable, no text or too large. No message holds the value.
    """
    kind, _, rest = reference.partition(":")
    if kind == "env":
        value = environ.get(rest, "").rstrip("\r\n")  # manifests often carry one along
        if not value:
            raise SecretMissing([f"{where}: environment variable {rest} is not set; export it before running sre"])
        if any("\udc80" <= one <= "\udcff" for one in value):  # bytes that are no text, as Python reads them
            raise ConfigError([f"{where}: environment variable {rest}: not UTF-8 text; export one that is"])
        return value
    if kind != "file":
        raise ConfigError([f"{where}: a secret is never written here; write env:NAME or file:/path"])
    path = expanded(rest)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SECRET_BYTES + 1)
        value = raw.decode("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        kind_of = SecretMissing if isinstance(error, FileNotFoundError | NotADirectoryError) else ConfigError
        raise kind_of([f"{where}: secret file {rest}: {reason}; check path and permissions"]) from None
    if len(raw) > MAX_SECRET_BYTES:
        raise ConfigError([f"{where}: secret file {rest} is too large; put the secret in it"])
    if not value:  # made, and not yet written
        raise SecretMissing([f"{where}: secret file {rest} is empty; put the secret in it"])
    return value


def redacted(settings: Any) -> Any:
    """
    A copy of dumped settings that may be shown: references stay, values that look like secrets become ``<hidden>``.

    A second line of defence: loading refuses plain secrets already.
    """
    return _redacted(settings, secret=False)


def _holds_secret(key: str) -> bool:
    """Settings named ``…_file`` say where a secret is, not what."""
    return is_secret_name(key) and not key.endswith("_file")


def _redacted(value: Any, *, secret: bool) -> Any:
    if isinstance(value, dict):
        return {k: _redacted(v, secret=secret or _holds_secret(str(k))) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(v, secret=secret) for v in value]
    if isinstance(value, str):
        if SECRET_REFERENCE.match(value):
            return value
        return HIDDEN if secret else re.sub(r"(?<=://)[^/@\s]+@", f"{HIDDEN}@", value)
    return value
