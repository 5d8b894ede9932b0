"""
A webhook that cannot store what it is sent tells a person, from memory: Alertmanager repeats its alerts, and meanwhile
nobody hears of them, nor of a heartbeat that stays away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from sre.actions import facts
from sre.actions.records import OutboxMessage
from sre.actions.types import Message
from sre.clock import Clock
from sre.notify.notices import over_message
from sre.notify.view import moment

log = logging.getLogger("sre.webhook")

LOOK_SECONDS = 5.0
TOLD_AFTER_SECONDS = 30.0
"""Alertmanager comes again within that time; what lasts longer makes its pages late."""
REASON = "alerts-not-stored"
OVER = "alerts can be stored again"
NEXT = "free the disk, or mend the guard's state folder; Alertmanager sends the alerts again by itself"


class OutageWatch:
    """
    Looks whether alerts can be stored.

    Args:
        problem: Why something that was posted is not stored now; None where all is.
        listeners: Channels that are told of a message.
        tell: Sends messages that the store cannot take.
    """

    def __init__(
        self,
        problem: Callable[[], str | None],
        listeners: Callable[[Message], Sequence[str]],
        clock: Clock,
        tell: Callable[[Sequence[OutboxMessage]], None],
    ) -> None:
        self._problem, self._listeners, self._clock, self._tell = problem, listeners, clock, tell
        self._since: float | None = None
        self._told: list[OutboxMessage] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                self.look()
            except Exception:  # this watch's own cycle boundary: it must outlive any mistake of ours
                log.exception("webhook: looking whether alerts can be stored failed")
            await self._clock.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Look once; tell what lasts, once, and its end."""
        problem, now = self._problem(), self._clock.monotonic()
        if problem is None:
            told, self._told, self._since = self._told, [], None
            if told:
                self._tell([replace(one, message=over_message(one.message, OVER, self._clock.wall())) for one in told])
            return
        if self._since is None:
            self._since = now
        if self._told or now - self._since < TOLD_AFTER_SECONDS:
            return
        message = _begun(problem, self._clock.wall(), now - self._since)
        self._told = [OutboxMessage(message, channel) for channel in self._listeners(message)]
        self._tell(self._told)


def _begun(problem: str, wall: float, seconds: float) -> Message:
    stamp = "".join(c for c in moment(wall) if c.isdigit())
    return Message(
        incident_id=f"webhook-{stamp[:8]}-{stamp[8:]}",
        event="open",
        severity="page",  # what waits at Alertmanager may be one
        scope="webhook",
        reason=REASON,
        summary=f"alerts cannot be stored, so nobody is told of them: {problem}",
        at_wall=wall,
        facts=((facts.SINCE, f"{wall - seconds:.0f}"), (facts.NEXT, NEXT)),
    )
