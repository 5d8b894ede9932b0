"""Ends of what was told. What has none to come says so: a paging service would keep it open without a word."""

from __future__ import annotations

from dataclasses import replace

from sre.actions import facts
from sre.actions.types import Message

NO_END = "a notice: no end of it is told; where it opened something, close it by hand"
"""Of what nobody can see the end of, and of what is over when it is told."""


def without_end(message: Message) -> Message:
    """Return ``message`` as one that has no end to come, and says so."""
    return replace(message, event="blind", facts=(*message.facts, (facts.MEANING, NO_END)))


def over_message(begun: Message, summary: str, at_wall: float) -> Message:
    """Return the end of what ``begun`` opened."""
    return Message(
        incident_id=begun.incident_id,
        event="resolve",
        severity="info",
        scope=begun.scope,
        reason=begun.reason,
        summary=summary,
        at_wall=at_wall,
        facts=((facts.SINCE, f"{begun.at_wall:.0f}"),),
    )
