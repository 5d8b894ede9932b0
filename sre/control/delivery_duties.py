"""What the sender does in each turn, each duty with a guard of its own: one that fails keeps no other back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sre.actions import facts
from sre.actions.records import OutboxMessage
from sre.actions.types import Message
from sre.clock import Clock
from sre.errors import StateError
from sre.notify.notices import over_message
from sre.notify.view import moment
from sre.settings.notify import ChannelSettings

log = logging.getLogger(__name__)

TOLD_AFTER_SECONDS = 30.0
"""A duty that fails for so long, while messages can be taken out of the store, is told to a person."""


@dataclass(slots=True)
class _Trouble:
    since: float
    error: str
    logged: bool = False
    told: Message | None = None


class Duties:
    """
    Carries duties out and remembers which of them fail.

    Args:
        tell: Sends messages from memory.
        count: Called each time a duty fails though the store works.
    """

    def __init__(
        self,
        channels: Sequence[ChannelSettings],
        clock: Clock,
        *,
        tell: Callable[[Sequence[OutboxMessage]], None],
        count: Callable[[], None],
    ) -> None:
        self._listeners = tuple(channel.name for channel in channels if "ticket" in channel.severities)
        self._clock = clock
        self._tell = tell
        self._count = count
        self._troubles: dict[str, _Trouble] = {}
        self._failed: set[str] = set()  # since the last ``settle``
        self._broken = False

    async def do(self, name: str, duty: Callable[[], Awaitable[None]]) -> StateError | None:
        """Carry ``duty`` out; return why it failed, None if it did not. Never raises but CancelledError."""
        try:
            await duty()
        except StateError as error:
            return self._fails(name, error)
        except Exception as error:  # the sender's own cycle boundary: it must outlive any mistake of ours
            if name not in self._troubles:
                log.exception("outbox: %s failed; the sender goes on", name)
            return self._fails(name, StateError(f"outbox: {name} failed: {type(error).__name__}: {error}"))
        trouble = self._troubles.pop(name, None)
        if trouble is not None and trouble.logged:
            log.warning("outbox: %s works again", name)
        if trouble is not None and trouble.told is not None:
            self._send(over_message(trouble.told, f"{name} works again", self._clock.wall()))
        return None

    def _fails(self, name: str, error: StateError) -> StateError:
        self._failed.add(name)
        known = self._troubles.get(name)
        if known is None:
            self._troubles[name] = _Trouble(self._clock.monotonic(), str(error))
        else:
            known.error = str(error)
        return error

    def settle(self, *, store_works: bool) -> None:
        """
        Count, log and tell (once) what failed since the last call, though the store works: where it does not, nothing
        is wrong with a duty.
        """
        failed, self._failed = sorted(self._failed), set()
        for name in failed if store_works else ():
            trouble = self._troubles[name]
            self._count()
            if not trouble.logged:
                trouble.logged = True
                log.error("outbox: %s: %s", name, trouble.error)
            if trouble.told is None and self._clock.monotonic() - trouble.since >= TOLD_AFTER_SECONDS:
                trouble.told = _begun(name, trouble.error, self._clock.wall())
                self._send(trouble.told)

    def count_mistake(self) -> None:
        """Count a delivery that failed by a mistake of ours."""
        with contextlib.suppress(Exception):  # the mistake may be in the counting
            self._count()

    def broke(self) -> bool:
        """Count a whole turn that failed, by a mistake in what guards its duties; return whether it is the first."""
        first, self._broken = not self._broken, True
        with contextlib.suppress(Exception):  # the mistake may be in the counting
            self._count()
        return first

    def held(self) -> None:
        """A whole turn did not."""
        if self._broken:
            log.warning("outbox: turns are whole again")
        self._broken = False

    def _send(self, message: Message) -> None:
        self._tell([OutboxMessage(message, channel) for channel in self._listeners])


def _begun(name: str, error: str, wall: float) -> Message:
    stamp = "".join(c for c in moment(wall) if c.isdigit())
    return Message(
        incident_id=f"outbox-{stamp[:8]}-{stamp[8:]}-{name.replace(' ', '-')}",
        event="open",
        severity="ticket",
        scope="outbox",
        reason="duty_failed",
        summary=f"{name} fails again and again: {error}",
        at_wall=wall,
        facts=((facts.SINCE, f"{wall:.0f}"), (facts.NEXT, "read the guard's log")),
    )
