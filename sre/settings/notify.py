"""Section ``notify``: who is told, and how."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sre.settings.base import FilePath, SecretRef, Settings
from sre.settings.stack import Name, Positive

Severity = Literal["page", "ticket", "info"]
Language = Literal["en", "zh"]


def _time_of_day(value: str) -> str:
    if not re.fullmatch(r"([01][0-9]|2[0-3]):[0-5][0-9]", value, re.ASCII):
        raise ValueError(f'"{value}" is no time of day; write it as 07:00 or 22:30')
    return value


TimeOfDay = Annotated[str, AfterValidator(_time_of_day)]
"""Of 24 hours: 22:00."""


class TemplateSettings(Settings):
    """Files with forms of your own: text with ${placeholders}. What is not set has the form of sre."""

    sms: FilePath | None = None
    """One line of at most 160 GSM-7 characters (67 in Chinese); must hold ${id}."""
    title: FilePath | None = None
    """The subject: one line."""
    text: FilePath | None = None
    """Long text of an e-mail, and the text of a chat message."""
    html: FilePath | None = None
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
    """Messages of other severities are not sent here. The end of an incident goes where its beginning went."""
    fallback: Name | None = None
    """Channel that takes over what this one cannot deliver."""
    template: TemplateSettings = TemplateSettings()
    """Forms of this channel; what is not set is as in notify.templates."""


class EscalationSettings(Settings):
    """What happens when nobody acknowledges a page."""

    after_seconds: Positive = 900.0
    """An incident of severity page that was not acknowledged for this long goes to the channels below."""
    repeat_seconds: Positive = 900.0
    """And again after this long, until it is acknowledged or resolved, or max_levels is reached."""
    max_levels: Annotated[int, Field(ge=1, le=20)] = 3
    channels: Annotated[tuple[Name, ...], Field(min_length=1)]


class QuietHoursSettings(Settings):
    """When messages that can wait do wait."""

    start: TimeOfDay = "22:00"
    end: TimeOfDay = "07:00"
    """Earlier than start: of the next day."""
    timezone: str = "UTC"
    """Name of a time zone, e.g. Asia/Shanghai."""
    severities: Annotated[tuple[Literal["ticket", "info"], ...], Field(min_length=1)] = ("ticket", "info")
    """A page never waits."""


class StormSettings(Settings):
    """How many messages one channel gets."""

    max_messages: Annotated[int, Field(ge=1, le=1000)] = 20
    """Pages and other messages are counted apart: a page never waits behind others."""
    window_seconds: Positive = 600.0
    """What is more than max_messages in this time becomes one message, at most every tenth of this time."""


class NotifySettings(Settings):
    """Notification."""

    language: Language = "en"
    """Language of the messages: en or zh."""
    channels: tuple[ChannelSettings, ...] = ()
    templates: TemplateSettings = TemplateSettings()
    initial_backoff_seconds: Positive = 5.0
    max_backoff_seconds: Positive = 300.0
    max_attempts: Annotated[int, Field(ge=1)] | None = None
    """
    null: what may pass is tried until it is too old. A number: after so many failed tries a message that is no page
    (nor the end of one) is dead. A page is tried until it is too old, whatever this says.
    """
    max_age_seconds: Positive = 86400.0
    """What is older is not sent any more; it is dead: shown by ``sre notify outbox list``, exit 3."""
    fallback_after_attempts: Annotated[int, Field(ge=1)] = 3
    """After so many failed tries the channel's fallback is told too; what is refused goes there at once."""
    max_unknown_outcomes: Annotated[int, Field(ge=1)] = 3
    """
    So often a message is sent that was cut off before the provider's answer each time: it may have arrived each time.
    Then the fallback is told; what is no page is dead, and a page is sent again ever more seldom (5 minutes, 10, …).
    Not of PagerDuty, where repetitions are one event.
    """
    escalation: EscalationSettings | None = None
    """null: nobody else is told of a page that is not acknowledged."""
    quiet_hours: QuietHoursSettings | None = None
    """null: every message goes out at once."""
    storm: StormSettings | None = StormSettings()
    """null: every message goes out by itself, however many."""
    hold_for_contexts_seconds: Annotated[float, Field(ge=0, le=30)] = 2.0
    """A page waits this long at most for the request contexts to be on disk."""
