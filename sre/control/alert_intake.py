"""
Alerts in: what the webhook received is decided on, committed together, and only then acknowledged.

Notifications that come while a commit is under way are committed together by the next one, so that a storm costs few
writes and two hundred copies of one notification cost one. What cannot be committed is refused for now: Alertmanager
sends it again. Beside that, what time brings: the heartbeat that stays away, trips, folders, firings nobody speaks of.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sre.actions.ports import IncidentRecorder
from sre.clock import Clock
from sre.control.alert_folders import AlertFolders
from sre.control.blocking import BlockingCalls
from sre.control.notify_proof import Canaries
from sre.errors import DependencyError, StateError
from sre.notify.alert_decide import Decision, Intake, alert_of
from sre.notify.alert_draft import Moment
from sre.notify.alert_places import trip_refusal
from sre.notify.alert_records import (
    HEARTBEAT_KEY,
    AlertIncident,
    Changes,
    Episode,
    GuardNow,
    Known,
    PendingTrip,
    TripRefusal,
    Verdict,
    Wanted,
)
from sre.notify.alerts import Payload

log = logging.getLogger("sre.webhook")

MOST_ALERTS_AT_ONCE = 500
"""In one transaction, unless one notification alone has more."""
MOST_ALERTS_WAITING = 20_000
"""About 40 MB; more are refused for now."""
TURN_SECONDS = 1.0
OUTLIVES_SECONDS = 300.0
"""So long an alert may go on firing after the guard closed the incident that it had joined: its own end takes a
scrape, an evaluation and a group_interval to come."""
LOOK_SECONDS = 15.0
LOOKED_AT = 200
"""Firings looked at in one turn."""
GRACE_SECONDS = 120.0
"""After a start the heartbeat has this long, or its timeout, to be heard first."""
FOLDERS_AT_ONCE = 20


class AlertBook(Protocol):
    """What is kept of alerts; see ``sre.adapters.store.alerts``. Every call blocks and raises StateError."""

    def change(self, wanted: Wanted, decide: Callable[[Known], Changes]) -> Changes: ...
    def heartbeat_age(self) -> float: ...
    def pending_trips(self) -> Sequence[PendingTrip]: ...
    def unheard(self, before_wall: float, limit: int) -> Sequence[Episode]: ...
    def outliving(self, guard_incidents: Collection[str], limit: int) -> Sequence[Episode]: ...
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


class Busy(StateError):
    """Too many alerts wait to be written; come again."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A notification that is on disk."""

    alerts: int
    verdicts: tuple[Verdict, ...]


@dataclass(slots=True)
class _Waiting:
    payload: Payload
    since: float
    done: asyncio.Future[Taken]


class AlertIntake:
    """
    Takes notifications in until cancelled.

    Args:
        book: None when there is no state that can be written; ``problem`` then says why.
        incidents: Where folders of incidents are made.
        wake_delivery: Called in the loop after messages were queued.
    """

    def __init__(
        self,
        intake: Intake,
        book: AlertBook | None,
        hands: Hands,
        clock: Clock,
        listener: AlertListener,
        incidents: IncidentRecorder,
        *,
        canaries: Canaries,
        wake_delivery: Callable[[], None] = lambda: None,
        problem: str = "",
        store_seconds: float = 5.0,
        most_waiting: int = MOST_ALERTS_WAITING,
    ) -> None:
        self._most_waiting = most_waiting
        self._intake, self._book, self._hands, self._clock = intake, book, hands, clock
        self._listener, self._wake_delivery = listener, wake_delivery
        self._canaries = canaries
        self._calls = BlockingCalls("alerts: guard state", seconds=store_seconds)
        self._folders = AlertFolders(incidents, clock, seconds=store_seconds)
        self._waiting: deque[_Waiting] = deque()
        self._alerts_waiting = 0
        self._came = asyncio.Event()
        self._hurry = asyncio.Event()
        self.problem: str | None = problem or None
        """Why nothing can be written now; None while it can, or while nothing was tried."""
        self._started = (clock.monotonic(), clock.wall())
        self._heard: float | None = None
        """Monotonic time of the last heartbeat as far as known."""
        self._silent = False
        self._trips_wait = True
        self._files_wait = True
        self._looked = clock.monotonic()
        self._outlived: dict[str, float] = {}

    # ---- in ----------------------------------------------------------------------------------------------------------

    async def take(self, payload: Payload) -> Taken:
        """
        Return when everything that ``payload`` leads to is on disk.

        Raises:
            StateError: Nothing of it is; it may be sent again.
        """
        if self._book is None:
            raise StateError(self.problem or "guard state: not there")
        if self._alerts_waiting + len(payload.alerts) > self._most_waiting and self._alerts_waiting:
            raise Busy(f"webhook: {self._alerts_waiting} alerts wait to be written; come again")
        waiting = _Waiting(payload, self._clock.monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._alerts_waiting += len(payload.alerts)
        self._came.set()
        return await waiting.done

    async def run(self) -> None:
        """Commit what comes and do what time brings, until cancelled."""
        turns = asyncio.create_task(self._turns())
        try:
            while True:
                await self._came.wait()
                self._came.clear()
                while batch := self._batch():
                    await self._commit(batch)
        finally:
            turns.cancel()
            await asyncio.gather(turns, return_exceptions=True)
            for one in self._waiting:
                if not one.done.done():
                    one.done.set_exception(StateError("webhook: stopping; come again"))
            self._waiting.clear()

    def _batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        alerts = 0
        while self._waiting and (not batch or alerts + len(self._waiting[0].payload.alerts) <= MOST_ALERTS_AT_ONCE):
            one = self._waiting.popleft()
            self._alerts_waiting -= len(one.payload.alerts)
            if one.done.cancelled():
                continue  # who sent it has gone away
            alerts += len(one.payload.alerts)
            batch.append(one)
        return batch

    async def _commit(self, batch: Sequence[_Waiting]) -> None:
        guard, now, active = self._hands.now(), self._now(), self._canaries.active()
        payloads = [one.payload for one in batch]
        ends: list[int] = []

        def decide(known: Known) -> Changes:
            decision = Decision(self._intake, known, guard, now)
            ends.clear()
            for payload in payloads:
                decision.take(payload, active)
                ends.append(decision.taken)
            return decision.changes()

        try:
            changes = await self._change(self._intake.wanted((a for p in payloads for a in p.alerts), guard), decide)
        except StateError as error:
            for one in batch:
                if not one.done.done():
                    one.done.set_exception(error)
            return
        verdicts = [verdict for _, verdict in changes.verdicts]
        for one, begin, end in zip(batch, [0, *ends], ends, strict=False):
            self._listener.committed(self._clock.monotonic() - one.since)
            self._listener.unreadable(len(one.payload.bad))
            self._listener.truncated(one.payload.truncated)
            if not one.done.done():
                one.done.set_result(Taken(len(one.payload.alerts), tuple(verdicts[begin:end])))
        for firing, verdict in changes.verdicts:
            self._listener.alert(firing, verdict)
        for identifier in changes.canaries:
            self._canaries.heard(identifier, received=now.wall, committed=self._clock.wall())

    async def _change(self, wanted: Wanted, decide: Callable[[Known], Changes]) -> Changes:
        """Write; wake whoever has to go on. Raises StateError."""
        book = self._book
        if book is None:
            raise StateError(self.problem or "guard state: not there")
        try:
            changes = await self._calls(lambda: book.change(wanted, decide))
        except StateError as error:
            self._fails(error)
            raise
        except Exception as error:
            log.exception("alerts: a decision failed")
            raise StateError(f"webhook: {type(error).__name__}: {error}") from error
        self.problem = None
        if changes.heartbeat:
            self._heard, self._silent = self._clock.monotonic(), False
            self._listener.heartbeat(self._clock.wall())
        if changes.outbox:
            self._wake_delivery()
        self._trips_wait = self._trips_wait or bool(changes.trips)
        self._files_wait = self._files_wait or any(one.listed for one in changes.incidents)
        if changes.trips:
            self._hurry.set()
        return changes

    def _fails(self, error: StateError) -> None:
        if self.problem is None:
            log.error("%s; Alertmanager is told to come again", error)
        self.problem = str(error)

    def _now(self) -> Moment:
        return Moment(self._clock.wall(), self._clock.monotonic())

    # ---- what time brings --------------------------------------------------------------------------------------------

    async def _turns(self) -> None:
        while True:
            self._hurry.clear()
            await self.turn()
            hurry = asyncio.ensure_future(self._hurry.wait())
            rest = asyncio.ensure_future(self._clock.sleep(TURN_SECONDS))
            try:
                await asyncio.wait((hurry, rest), return_when=asyncio.FIRST_COMPLETED)
            finally:
                hurry.cancel()
                rest.cancel()
                await asyncio.gather(hurry, rest, return_exceptions=True)

    async def turn(self) -> None:
        """Do what is due. Never raises but CancelledError: what could not be done is tried in the next turn."""
        for duty in (self._trip, self._listen, self._look, self._file):
            try:
                await duty()
            except StateError as error:
                self._fails(error)
            except Exception:  # the webhook's own cycle boundary: one duty that fails must not stop the others
                log.exception("alerts: %s failed", duty.__name__)

    async def _listen(self) -> None:
        """Tell of a heartbeat that stays away, once."""
        settings, book = self._intake.settings.heartbeat, self._book
        if self._silent or book is None:
            return
        if not settings.enabled:
            await self._decide_on_heartbeat(lambda decision: decision.unwatch())
            self._silent = True
            return
        now = self._clock.monotonic()
        if self._heard is None:
            self._heard = now - await self._calls(book.heartbeat_age)
        deadline = max(
            self._heard + settings.timeout_seconds,
            self._started[0] + min(GRACE_SECONDS, settings.timeout_seconds),
        )
        if now < deadline:
            return
        silent = now - self._heard
        await self._decide_on_heartbeat(lambda decision: decision.silence(silent))
        self._silent = True

    async def _decide_on_heartbeat(self, what: Callable[[Decision], None]) -> None:
        guard, moment = self._hands.now(), self._now()

        def decide(known: Known) -> Changes:
            decision = Decision(self._intake, known, guard, moment)
            what(decision)
            return decision.changes()

        await self._change(Wanted(join_keys=frozenset({HEARTBEAT_KEY})), decide)

    async def _trip(self) -> None:
        """Carry out the trips that are written down; those too old by now open an incident instead."""
        book = self._book
        if not self._trips_wait or book is None:
            return
        self._trips_wait = False
        try:
            pending = await self._calls(book.pending_trips)
            for one in pending:
                if not await self._trip_one(one):
                    self._trips_wait = True
        except BaseException:  # a store that cannot be had: what waits is tried again in the next turn
            self._trips_wait = True
            raise

    async def _trip_one(self, pending: PendingTrip) -> bool:
        """Return whether it is settled."""
        trip, detail = pending.trip, ""
        alert = alert_of(pending)
        age = pending.age_seconds + max(0.0, pending.at_wall - alert.starts_wall)
        refusal = trip_refusal(trip, self._hands.now(), age)
        if refusal is None:
            try:
                await self._hands.trip(trip.target, f"alert {alert.name} (route {trip.route})")
            except ValueError as error:
                refusal, detail = TripRefusal.FAILED, str(error)
            except DependencyError as error:
                detail = str(error)  # it is written down; the guard's next tick makes it true
            except StateError as error:
                log.warning("alerts: no trip of %s yet: %s", trip.target, error)
                return False
        guard, now = self._hands.now(), self._now()
        wanted = self._intake.wanted((alert,), guard)

        def decide(known: Known) -> Changes:
            decision = Decision(self._intake, known, guard, now)
            decision.settle(pending, refusal, detail)
            return decision.changes()

        await self._change(wanted, decide)
        return True

    async def _look(self) -> None:
        """Firings that outlive the guard's incident, and firings nobody speaks of any more."""
        book, at = self._book, self._clock.monotonic()
        if book is None or at - self._looked < LOOK_SECONDS:
            return
        self._looked = at
        known = frozenset(self._hands.now().incidents.values())
        left = await self._calls(lambda: book.outliving(known, LOOKED_AT))
        over = {str(one.incident_id) for one in left}
        self._outlived = {one: self._outlived.get(one, at) for one in over}
        outliving = [one for one in left if at - self._outlived[str(one.incident_id)] >= OUTLIVES_SECONDS]
        if outliving:
            await self._decide_on(outliving, Decision.outlives)
        # A wall clock that was set forward forgets nothing.
        wall = min(self._clock.wall(), self._started[1] + (at - self._started[0]))
        before = wall - self._intake.settings.forget_after_seconds
        unheard = await self._calls(lambda: book.unheard(before, LOOKED_AT))
        if unheard:
            await self._decide_on(unheard, Decision.forget)

    async def _decide_on(self, episodes: Sequence[Episode], what: Callable[[Decision, Episode], None]) -> None:
        guard, now = self._hands.now(), self._now()
        wanted = self._intake.wanted(map(alert_of, episodes), guard)

        def decide(known: Known) -> Changes:
            decision = Decision(self._intake, known, guard, now)
            for episode in episodes:
                present = known.episodes.get(episode.key)
                if present is not None and present.open and present.incident_id == episode.incident_id:
                    what(decision, present)
            return decision.changes()

        await self._change(wanted, decide)

    async def _file(self) -> None:
        """Make folders of incidents, and close them."""
        book = self._book
        if not self._files_wait or book is None:
            return
        self._files_wait = False
        try:
            incidents = await self._calls(lambda: book.unfiled(FOLDERS_AT_ONCE))
            if incidents:
                await self._folders.write(incidents)
                await self._calls(lambda: book.mark_filed(incidents))
                self._files_wait = True
        except BaseException:
            self._files_wait = True
            raise
