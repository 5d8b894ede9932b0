"""What waits long because it may have arrived is tried sooner where its channel is seen to work."""

from __future__ import annotations

from sre.clock import Clock
from sre.control.blocking import BlockingCalls
from sre.control.delivery_channels import Channels
from sre.control.delivery_memory import Unsaved
from sre.control.delivery_records import Key, key_of
from sre.control.outbox_port import Outbox
from sre.notify.policy import Follow, Next, Policy


class EarlyTries:
    """
    Makes what may have arrived ``max_unknown_outcomes`` times due when its channel has just delivered something.

    One message for each that was delivered, so that they go out one after another, and each once per recovery of the
    channel: one that stays unknown while others arrive goes on waiting ever longer.
    """

    def __init__(
        self, store: Outbox, calls: BlockingCalls, channels: Channels, unsaved: Unsaved, policy: Policy, clock: Clock
    ) -> None:
        self._store, self._calls, self._channels, self._unsaved = store, calls, channels, unsaved
        self._often, self._clock = policy.max_unknown_outcomes, clock

    async def after(self, channel: str, which: int | Key, follow: Follow) -> None:
        """What a try of ``which`` (a row, or what lives in memory) leads to. Raises StateError."""
        early = self._channels.brought_forward(channel)
        if follow.next is not Next.REPEAT:
            early.discard(which)
        if follow.next is Next.SENT and not self._from_memory(channel, early):
            store, often = self._store, self._often
            known = tuple(row_id for row_id in early if isinstance(row_id, int))
            found = await self._calls(lambda: store.bring_forward(channel, unknown_outcomes=often, exclude=known))
            if found is not None:
                early.add(found)

    def _from_memory(self, channel: str, early: set[int | Key]) -> bool:
        """Whether one of those that the store could not take is due now."""
        now = self._clock.monotonic()
        for item in self._unsaved.waiting:
            key = key_of(item.message)
            if (
                item.message.channel == channel
                and item.unknown_outcomes >= self._often
                and item.not_before > now
                and key not in early
            ):
                early.add(key)
                item.not_before = now
                return True
        return False
