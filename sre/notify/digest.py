"""Many messages as one: what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sre.actions import facts
from sre.actions.types import Message
from sre.notify.notices import NO_END, over_message
from sre.notify.policy import Why

IDS_NAMED = 20
"""Incidents named in the message; the command it names shows all."""
LINES_SHOWN = 8
"""Messages whose summary it quotes."""
LONGEST_LINE = 160


@dataclass(frozen=True, slots=True)
class Gathered:
    """What goes into a digest."""

    number: int
    begun: int
    """Messages of a beginning, and all that are of no other kind."""
    escalated: int
    ended: int
    incidents: int
    worst: str
    """The most urgent severity among them."""
    first_wall: float
    last_wall: float
    ids: Sequence[str]
    """The first incidents, most urgent first, at most IDS_NAMED."""
    sample: Sequence[Message]
    """The first messages, most urgent first, at most LINES_SHOWN."""

    @property
    def messages(self) -> int:
        return self.begun + self.escalated + self.ended


def digest_id(number: int, at_wall: float) -> str:
    """Return the name of a digest; ``number`` keeps apart what was made in one second."""
    return f"digest-{datetime.fromtimestamp(at_wall, UTC):%Y%m%d-%H%M%S}-{number:04d}"


def digest_message(gathered: Gathered, why: Why, at_wall: float, *, opens: bool, ends: bool = True) -> Message:
    """
    Return one message that stands for all of ``gathered``.

    Args:
        opens: Something that it tells is not over. Else it must not open anything at a paging service: nothing would
            close it.
        ends: Its end will be told. It is not where it tells nothing but notices, which have none.
    """
    name = digest_id(gathered.number, at_wall)
    counts = f"{gathered.begun} begun, {gathered.escalated} escalated, {gathered.ended} ended"
    seconds = max(0.0, gathered.last_wall - gathered.first_wall)
    left = gathered.incidents - len(gathered.ids)
    named = ", ".join(gathered.ids) + (f", and {left} more" if left > 0 else "")
    return Message(
        incident_id=name,
        event="digest" if opens else "resolve" if gathered.begun or gathered.ended else "acknowledge",
        severity=gathered.worst,
        scope=f"{gathered.incidents} incidents",
        reason=why.value,
        summary=f"{gathered.messages} messages in {seconds:.0f} s: {counts}",
        at_wall=at_wall,
        facts=(
            (facts.SINCE, f"{gathered.first_wall:.0f}"),
            (facts.NEXT, f"sre notify outbox list --digest {name}"),
            (facts.INCIDENTS, named),
            *(() if ends else ((facts.MEANING, NO_END),)),
            *((facts.TIMELINE, _line(message)) for message in gathered.sample),
        ),
    )


def digest_over_message(digest: Message, at_wall: float) -> Message:
    """Return what ends a digest: every incident that it told of is over. Their own ends are not told one by one."""
    return over_message(digest, f"all incidents of {digest.incident_id} are over", at_wall)


def _line(message: Message) -> str:
    moment = datetime.fromtimestamp(message.at_wall, UTC)
    text = f"{moment:%Y-%m-%d %H:%M:%S} {message.severity} {message.event} {message.scope}: {message.summary}"
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 3] + "..."
