"""Somebody takes care of an incident: written down beside the loop, and nobody else is called."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from sre.actions.records import Acknowledgement, AckOutcome
from sre.control.blocking import CALL_SECONDS, BlockingCalls


class AckStore(Protocol):
    """What this needs of the store. Blocks, perhaps for good; raises StateError."""

    def acknowledge(
        self, incident_id: str, *, by: str, note: str, via: str, tell: Collection[str]
    ) -> Acknowledgement: ...


class Acknowledgements:
    """
    Takes acknowledgements, from a command or a link.

    Args:
        tell: Channels that are told of one, if they were told of the incident.
        wake: Called when there is something to send.
    """

    def __init__(
        self, store: AckStore, tell: Collection[str], *, wake: Callable[[], None], seconds: float = CALL_SECONDS
    ) -> None:
        self._store, self._tell, self._wake = store, tuple(tell), wake
        self._calls = BlockingCalls("acknowledgement", seconds=seconds)

    async def __call__(self, incident_id: str, by: str, note: str = "", via: str = "command") -> Acknowledgement:
        """
        Acknowledge an incident, or all incidents of a digest; the first acknowledgement stays.

        Raises:
            StateError: It cannot be written down, so it does not count.
        """
        store, tell = self._store, self._tell
        found = await self._calls(lambda: store.acknowledge(incident_id, by=by, note=note, via=via, tell=tell))
        if found.outcome is AckOutcome.ACKNOWLEDGED:
            self._wake()
        return found
