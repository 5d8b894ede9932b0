"""What the sender remembers of messages and channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sre.actions.records import OutboxMessage, OutboxRow
from sre.notify.outcomes import Verdict

OUTCOMES = ("delivered", "failed", "rejected", "unknown")
"""How a try ended, as it is counted."""

LABELS: Mapping[Verdict, str] = {Verdict.IMPOSSIBLE: "failed", Verdict.REFUSED_NOW: "rejected"}
"""Verdicts that are counted under another's name."""

Key = tuple[str, str, str, int]
"""Incident, event, channel, level: what makes two messages one."""


@dataclass(slots=True)
class ChannelStatistics:
    """Tries of one channel since the guard began."""

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    dead: int = 0
    last_error: str | None = None


@dataclass(slots=True)
class Unstored:
    """A message that the store could not take: kept here, lost if the guard dies."""

    message: OutboxMessage
    since: float
    """Monotonic time at which it came."""
    attempts: int = 0
    unknown_outcomes: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Outcome:
    """How the delivery of a stored row ended, until the store has written it down."""

    write: Callable[[], bool]
    attempts: int
    not_before: float | None
    """Monotonic time before which the row is not tried again; None: never again."""
    unknown_outcomes: int = 0
    """Tries of it that may have arrived."""
    written: bool = False

    def write_once(self) -> None:
        """In the store's thread. A try written twice would count twice, and a write may end after it was given up."""
        if not self.written:
            self.write()
            self.written = True


def key_of(item: OutboxMessage | OutboxRow) -> Key:
    """Return what makes ``item`` the same as another one."""
    return item.message.incident_id, item.message.event, item.channel, item.level
