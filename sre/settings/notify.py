"""Section ``notify``: who is told, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sre.settings.base import SecretRef, Settings
from sre.settings.stack import Name, Positive


class ChannelSettings(Settings):
    """One Apprise destination with one recipient."""

    name: Name
    kind: Literal["email", "sms", "webhook", "chat"]
    """Decides the form of the message: sms is one line of at most 160 GSM-7 characters."""
    url: SecretRef
    """Reference to the Apprise URL, e.g. env:SRE_MAIL_URL holding mailto://… ."""
    timeout_seconds: Positive = 20.0
    """Hard limit of one delivery; then its process is killed."""


class NotifySettings(Settings):
    """Notification."""

    channels: tuple[ChannelSettings, ...] = ()
    initial_backoff_seconds: Positive = 5.0
    max_backoff_seconds: Positive = 300.0
    max_attempts: Annotated[int, Field(ge=1)] = 20
    """After so many failed tries a message is dead: shown by ``sre notify outbox list``, exit 3."""
    max_age_seconds: Positive = 86400.0
    hold_for_contexts_seconds: Annotated[float, Field(ge=0, le=30)] = 2.0
    """A page waits this long at most for the request contexts to be on disk."""
