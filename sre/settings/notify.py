"""Section ``notify``: who is told, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sre.settings.base import SecretRef, Settings
from sre.settings.stack import Name, Positive

Severity = Literal["page", "ticket", "info"]
Language = Literal["en", "zh"]


class TemplateSettings(Settings):
    """Files with forms of your own: text with ${placeholders}. What is not set has the form of sre."""

    sms: str | None = None
    """One line of at most 160 GSM-7 characters (67 in Chinese); must hold ${id}."""
    title: str | None = None
    """The subject: one line."""
    text: str | None = None
    """Long text of an e-mail, and the text of a chat message."""
    html: str | None = None
    """HTML of an e-mail; every value is escaped."""


class ChannelSettings(Settings):
    """One Apprise destination with one recipient."""

    name: Name
    kind: Literal["email", "sms", "webhook", "chat", "pagerduty"]
    """Decides the form of the message: sms is one line of at most 160 GSM-7 characters (Chinese: 67 of UCS-2)."""
    url: SecretRef
    """Reference to the Apprise URL, e.g. env:SRE_MAIL_URL holding mailtos://… ."""
    timeout_seconds: Positive = 20.0
    """Hard limit of one delivery; then its process is killed."""
    language: Language | None = None
    """null: as notify.language."""
    severities: Annotated[tuple[Severity, ...], Field(min_length=1)] = ("page", "ticket")
    """Messages of other severities are not sent here. The end of an incident always is."""
    fallback: Name | None = None
    """Channel that takes over what this one cannot deliver."""
    template: TemplateSettings = TemplateSettings()
    """Forms of this channel; what is not set is as in notify.templates."""


class NotifySettings(Settings):
    """Notification."""

    language: Language = "en"
    """Language of the messages: en or zh."""
    channels: tuple[ChannelSettings, ...] = ()
    templates: TemplateSettings = TemplateSettings()
    initial_backoff_seconds: Positive = 5.0
    max_backoff_seconds: Positive = 300.0
    max_attempts: Annotated[int, Field(ge=1)] = 20
    """After so many failed tries a message is dead: shown by ``sre notify outbox list``, exit 3."""
    max_age_seconds: Positive = 86400.0
    hold_for_contexts_seconds: Annotated[float, Field(ge=0, le=30)] = 2.0
    """A page waits this long at most for the request contexts to be on disk."""
