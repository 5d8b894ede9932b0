"""A page that nobody acknowledges goes to more people: when, to whom, in which words."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from sre.actions import facts
from sre.actions.types import Message
from sre.settings.notify import ChannelSettings, EscalationSettings

FIRST_LEVEL = 10
"""Level of the first such message in the outbox less one; lower levels are the guard's own escalations."""

SHORT_SECONDS = 120.0
"""What is shorter is told in seconds."""

TOLD_OF_ACKNOWLEDGEMENT = frozenset({"pagerduty", "chat", "webhook"})
"""Kinds of channels on which several people, or a paging service, wait for somebody to take over."""


@dataclass(frozen=True, slots=True)
class Escalation:
    """When the next level is told."""

    after_seconds: float
    repeat_seconds: float
    max_levels: int
    channels: tuple[str, ...]


def escalation_of(settings: EscalationSettings) -> Escalation:
    """Return the escalation that ``settings`` set."""
    return Escalation(settings.after_seconds, settings.repeat_seconds, settings.max_levels, settings.channels)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """What is known of an incident."""

    severity: str
    resolved: bool
    acknowledged: bool
    level: int
    """Levels told."""
    waited_seconds: float
    """Since it began, or since the last level was told. Monotonic time; a reboot counts as the wall clock says."""


class Step(enum.Enum):
    """Whether the next level is told, and why not."""

    TELL = "not_acknowledged"
    NOT_YET = "not_yet"
    RESOLVED = "resolved"
    ACKNOWLEDGED = "acknowledged"
    NO_PAGE = "no_page"
    ALL_TOLD = "all_told"


def step(seen: Unanswered, escalation: Escalation) -> Step:
    """Return whether the next level is told now. Never two levels at once, however long nobody looked."""
    if seen.resolved:
        return Step.RESOLVED
    if seen.acknowledged:
        return Step.ACKNOWLEDGED
    if seen.severity != "page":
        return Step.NO_PAGE
    if seen.level >= escalation.max_levels:
        return Step.ALL_TOLD
    due = escalation.repeat_seconds if seen.level else escalation.after_seconds
    return Step.TELL if seen.waited_seconds >= due else Step.NOT_YET


def escalation_message(opening: Message, level: int, at_wall: float) -> Message:
    """
    Return what is told at ``level`` (from 1) of an incident that began with ``opening``.
    """
    seconds = max(0.0, at_wall - opening.at_wall)
    waited = f"{seconds:.0f} s" if seconds < SHORT_SECONDS else f"{seconds / 60:.0f} min"
    kept = [(name, value) for name, value in opening.facts if name not in (facts.NEXT, facts.SINCE)]
    return Message(
        incident_id=opening.incident_id,
        event="escalate",
        severity="page",
        scope=opening.scope,
        reason=opening.reason,
        summary=f"not acknowledged for {waited} (level {level}): {opening.summary}",
        at_wall=at_wall,
        facts=(
            (facts.SINCE, f"{opening.at_wall:.0f}"),
            (facts.NEXT, f"sre incident ack {opening.incident_id}"),
            *kept,
        ),
    )


def acknowledge_message(opening: Message, by: str, note: str, at_wall: float) -> Message:
    """Return what the channels that wait for it are told when ``by`` took the incident over."""
    return Message(
        incident_id=opening.incident_id,
        event="acknowledge",
        severity="info",
        scope=opening.scope,
        reason=opening.reason,
        summary=f"acknowledged by {by}{': ' + note if note else ''}",
        at_wall=at_wall,
        facts=((facts.SINCE, f"{opening.at_wall:.0f}"),),
    )


def told_of_acknowledgement(channels: Sequence[ChannelSettings]) -> tuple[str, ...]:
    """Return the channels that are told of an acknowledgement, should they have heard of the incident."""
    return tuple(channel.name for channel in channels if channel.kind in TOLD_OF_ACKNOWLEDGEMENT)
