"""What taking alerts in needs of others: the tables, the guard's hands, somebody who counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from sre.notify.alert_records import (
    AlertIncident,
    Changes,
    DamagedTrip,
    Episode,
    GuardNow,
    Known,
    LeftOut,
    PendingTrip,
    Verdict,
    Wanted,
)
from sre.notify.alerts import EpisodeKey


class AlertBook(Protocol):
    """What is kept of alerts; see ``sre.adapters.store.alerts``. Every call blocks and raises StateError."""

    def change(self, wanted: Wanted, decide: Callable[[Known], Changes]) -> Changes: ...
    def probe(self) -> None: ...
    def heartbeat_age(self) -> float: ...
    def episode(self, key: EpisodeKey) -> Episode | None: ...
    def pending_trips(self) -> Sequence[PendingTrip | DamagedTrip]: ...
    def unheard(self, before_wall: float, limit: int) -> Sequence[Episode]: ...
    def joined_of_guard(self) -> frozenset[str]: ...
    def firing_of(self, incidents: Collection[str], limit: int) -> Sequence[Episode]: ...
    def left_out(self, limit: int) -> Mapping[str, tuple[Sequence[LeftOut], int]]: ...
    def unfiled(self, limit: int) -> Sequence[AlertIncident]: ...
    def mark_filed(self, incidents: Iterable[AlertIncident]) -> None: ...


class Hands(Protocol):
    """The guard as alerts need it."""

    def now(self) -> GuardNow: ...

    async def trip(self, target: str, reason: str) -> None:
        """
        Open the breaker of an engine, or of every engine of a pool.

        Raises:
            ValueError: That makes no sense, and will make none later.
            StateError, DependencyError: It could not be done now.
        """
        ...


class NoGuard:
    """``Hands`` where no guard is."""

    def now(self) -> GuardNow:
        return GuardNow()

    async def trip(self, target: str, reason: str) -> None:
        raise ValueError("there is no guard here")


class AlertListener(Protocol):
    """Told of what happened; the exporter implements it."""

    def alert(self, firing: bool, verdict: Verdict) -> None: ...
    def unreadable(self, alerts: int) -> None: ...
    def truncated(self, alerts: int) -> None: ...
    def committed(self, seconds: float) -> None: ...
    def heartbeat(self, wall: float) -> None: ...
    def failed(self) -> None: ...
