"""
Alerts in: what the webhook received is decided on, committed together, and only then acknowledged.

Notifications that come while a commit is under way are committed together by the next one, so that a storm costs few
writes and two hundred copies of one notification cost one. What cannot be committed is refused for now: Alertmanager
sends it again. What time brings is beside that, see ``alert_duties``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sre.actions.ports import IncidentRecorder
from sre.clock import Clock
from sre.control.alert_duties import AlertDuties
from sre.control.alert_folders import AlertFolders
from sre.control.alert_ports import AlertBook, AlertListener, Hands
from sre.control.alert_writer import AlertWriter, DecisionFailed
from sre.control.notify_proof import Canaries
from sre.control.tasks import kept_up
from sre.errors import StateError
from sre.notify.alert_decide import Decision, Intake
from sre.notify.alert_records import Changes, Known, Verdict
from sre.notify.alerts import Payload

log = logging.getLogger("sre.webhook")

MOST_ALERTS_AT_ONCE = 500
"""In one transaction, unless one notification alone has more."""
MOST_ALERTS_WAITING = 20_000
"""About 40 MB; more are refused for now."""
FIRST_REST_SECONDS = 0.5
LONGEST_REST_SECONDS = 30.0


REFUSED_KEPT_SECONDS = 900.0
"""Alertmanager comes again with what it could not post, at the latest after the longest group_interval; what nobody has
posted again for so long is waited for no longer."""
MOST_REFUSED = 1_000


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
        self._intake, self._hands, self._clock = intake, hands, clock
        self._listener, self._wake_delivery, self._canaries = listener, wake_delivery, canaries
        self.writer = AlertWriter(
            book, clock, problem=problem, seconds=store_seconds, committed=self._committed, failed=listener.failed
        )
        folders = AlertFolders(incidents, clock, seconds=store_seconds)
        self.duties = AlertDuties(intake, self.writer, hands, clock, listener, folders)
        self._waiting: deque[_Waiting] = deque()
        self._alerts_waiting = 0
        self._came = asyncio.Event()
        self._rests: str | None = None
        """Why nothing is taken in for a moment: a commit failed by a mistake of ours."""
        self._stopped = False
        self._refused: dict[int, float] = {}
        """By group: when a post of it was refused, if none of it was stored since."""
        self._refusal = ""

    @property
    def problem(self) -> str | None:
        """Why nothing can be written now; None while it can, or while nothing was tried."""
        return self._rests or self.writer.problem

    @property
    def unstored(self) -> str | None:
        """
        Why something that was posted is not stored; None where all is. A store that takes small writes and refuses
        large ones works again every second, and yet the alerts of a large post are not stored.
        """
        oldest = self._clock.monotonic() - REFUSED_KEPT_SECONDS
        self._refused = {group: at for group, at in self._refused.items() if at > oldest}
        return self.problem or (self._refusal if self._refused else None)

    def lost(self, cause: str, sentence: str) -> None:
        """A notification of somebody who may post was refused for good; a person is told, once an hour per cause."""
        self.duties.let_in()
        self.duties.lost(cause, sentence)

    def turned_away(self) -> None:
        """A post came whose credentials open nothing."""
        self.duties.turned_away()

    async def take(self, payload: Payload) -> Taken:
        """
        Return when everything that ``payload`` leads to is on disk.

        Raises:
            StateError: Nothing of it is; it may be sent again.
        """
        self.duties.let_in()
        if self.writer.book is None:
            raise StateError(self.problem or "guard state: not there")
        if self._stopped:
            raise StateError("webhook: stopping; come again")
        if self._rests is not None:
            raise StateError(self._rests)
        if self._alerts_waiting + len(payload.alerts) > self._most_waiting and self._alerts_waiting:
            raise Busy(f"webhook: {self._alerts_waiting} alerts wait to be written; come again")
        waiting = _Waiting(payload, self._clock.monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._alerts_waiting += len(payload.alerts)
        self._came.set()
        return await waiting.done

    async def run(self) -> None:
        """Commit what comes and do what time brings, until cancelled. May be begun again after it ended."""
        self._stopped = False
        turns = asyncio.create_task(
            kept_up(self.duties.run, "webhook: what time brings", self._clock, failed=self._listener.failed)
        )
        rest = FIRST_REST_SECONDS
        try:
            while True:
                await self._came.wait()
                self._came.clear()
                try:
                    while batch := self._batch():
                        await self._commit(batch)
                        rest = FIRST_REST_SECONDS
                except Exception as error:  # the webhook's own cycle boundary: it must outlive any mistake of ours
                    log.exception("webhook: a commit failed; it is tried again in %g s", rest)
                    self._listener.failed()
                    await self._rest(error, rest)
                    rest = min(2 * rest, LONGEST_REST_SECONDS)
        finally:
            self._stopped = True
            turns.cancel()
            await asyncio.gather(turns, return_exceptions=True)
            self._refuse_all(StateError("webhook: stopping; come again"))

    async def turn(self) -> None:
        """Do what time has brought; ``run`` does it by itself."""
        await self.duties.turn()

    async def _rest(self, error: Exception, seconds: float) -> None:
        """Whoever posts is told to come again meanwhile."""
        self._rests = f"webhook: {type(error).__name__}: {error}; come again"
        self._refuse_all(StateError(self._rests))
        try:
            await self._clock.sleep(seconds)
        finally:
            self._rests = None

    def _refuse_all(self, error: StateError) -> None:
        while self._waiting:
            one = self._waiting.popleft()
            if not one.done.done():
                one.done.set_exception(error)
        self._alerts_waiting = 0

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
        """Write ``batch`` and answer everybody of it, whatever happens."""
        try:
            await self._commit_together(batch)
        except DecisionFailed as error:
            if len(batch) == 1:
                self._refuse(batch, error)
                return
            for one in batch:  # one that we cannot decide on must not keep the others back
                await self._commit([one])
        except StateError as error:
            self._refuse(batch, error)
        except BaseException as error:
            self._refuse(batch, StateError(f"webhook: {type(error).__name__}: {error}; come again"))
            raise

    async def _commit_together(self, batch: Sequence[_Waiting]) -> None:
        guard, now, active = self._hands.now(), self.writer.now(), self._canaries.active()
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
            wanted = self._intake.wanted((alert for payload in payloads for alert in payload.alerts), guard)
        except Exception as error:
            log.exception("webhook: an alert cannot be looked at")
            self._listener.failed()
            raise DecisionFailed(f"webhook: {type(error).__name__}: {error}") from error
        changes = await self.writer.change(wanted, decide)
        verdicts = [verdict for _, verdict in changes.verdicts]
        for one, begin, end in zip(batch, [0, *ends], ends, strict=False):
            self._refused.pop(_group(one.payload), None)
            if not one.done.done():
                one.done.set_result(Taken(len(one.payload.alerts), tuple(verdicts[begin:end])))
        # Everybody is answered; what is counted now keeps nobody waiting.
        for one in batch:
            self._listener.committed(self._clock.monotonic() - one.since)
            self._listener.unreadable(len(one.payload.bad))
            self._listener.truncated(one.payload.truncated)
        for firing, verdict in changes.verdicts:
            self._listener.alert(firing, verdict)
        for identifier in changes.canaries:
            self._canaries.heard(identifier, received=now.wall, committed=self._clock.wall())

    def _refuse(self, batch: Sequence[_Waiting], error: StateError) -> None:
        self._refusal = str(error)
        for one in batch:
            if not one.done.done():
                one.done.set_exception(error)
            self._refused.pop(_group(one.payload), None)  # the latest at the end
            self._refused[_group(one.payload)] = self._clock.monotonic()
        while len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def _committed(self, changes: Changes) -> None:
        if changes.outbox:
            self._wake_delivery()
        self.duties.committed(changes)


def _group(payload: Payload) -> int:
    return hash((payload.receiver, payload.group_key))
