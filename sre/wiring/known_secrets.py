"""What is never to be written anywhere: the secrets that the configuration refers to."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from sre.clock import Clock
from sre.errors import ConfigError
from sre.redaction import SHORTEST_TOPIC, redact, secrets_of_url
from sre.settings.models import Root
from sre.settings.secrets import resolve_secret
from sre.settings.webhook import WebhookSettings

READ_AGAIN_SECONDS = 30.0
"""Secrets come late and are renewed: what is this old is read again before it is used."""


def webhook_secrets(settings: WebhookSettings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What is never to be written anywhere; what cannot be resolved is left out."""
    found = []
    for reference in (settings.token, settings.basic_password, settings.ack_secret):
        if reference is not None:
            with contextlib.suppress(ConfigError):
                found.append(resolve_secret(reference, "secret", environ).strip())
    return tuple(found)


def known_secrets(root: Root, environ: Mapping[str, str]) -> tuple[str, ...]:
    """
    Every secret that the configuration refers to and that can be resolved: never to be written anywhere. Of a channel's
    URL also what is secret in it: a provider may repeat only the token.
    """
    keys = [engine.api_key for engine in root.stack.engines] + [root.gate.target.api_key]
    found = {*webhook_secrets(root.webhook, environ)}
    for reference in filter(None, keys):
        with contextlib.suppress(ConfigError):
            found.add(resolve_secret(reference, "secret", environ))
    for channel in root.notify.channels:
        with contextlib.suppress(ConfigError):
            # A short password of letters alone is also a piece of many words.
            parts = secrets_of_url(resolve_secret(channel.url, "secret", environ))
            found.update(part for part in parts if len(part) >= SHORTEST_TOPIC or not part.isalpha())
    return tuple(sorted(found))


class Redaction:
    """Takes secrets out of whatever is written into incident folders; those whose files change are read again."""

    def __init__(self, root: Root, environ: Mapping[str, str], clock: Clock) -> None:
        self._root, self._environ, self._clock = root, environ, clock
        self._read, self._secrets = clock.monotonic(), known_secrets(root, environ)

    def __call__(self, text: str) -> str:
        now = self._clock.monotonic()
        if now - self._read >= READ_AGAIN_SECONDS:
            # What was renewed is hidden, and what it was before, too: that is still in somebody's log.
            self._read = now
            self._secrets = tuple(sorted({*self._secrets, *known_secrets(self._root, self._environ)}))
        return redact(text, self._secrets)
