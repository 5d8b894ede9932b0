"""Trips that alerts asked for: carried out once each, and settled however often it takes to write that down."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from sre.clock import Clock
from sre.control.alert_ports import AlertListener, Hands
from sre.control.alert_writer import AlertWriter, DecisionFailed
from sre.control.resting import Rests
from sre.errors import DependencyError, StateError
from sre.notify.alert_decide import Intake, alert_of
from sre.notify.alert_later import Later
from sre.notify.alert_places import trip_refusal
from sre.notify.alert_records import DamagedTrip, PendingTrip, TripRefusal, Wanted
from sre.notify.alerts import Alert

log = logging.getLogger("sre.webhook")


class AlertTrips:
    """
    Args:
        decide: Decides and writes; raises StateError.
    """

    def __init__(
        self,
        intake: Intake,
        writer: AlertWriter,
        hands: Hands,
        clock: Clock,
        listener: AlertListener,
        decide: Callable[[Wanted, Callable[[Later], None]], Awaitable[None]],
    ) -> None:
        self._intake, self._writer, self._hands, self._listener, self._decide = intake, writer, hands, listener, decide
        self._rests = Rests(clock)
        self._carried: dict[int, tuple[TripRefusal | None, str]] = {}
        """By number: trips whose outcome is known here and not on disk."""
        self.wait = True
        """Some are perhaps written down."""

    async def turn(self) -> None:
        """Carry out the trips that are written down; those too old by now open an incident instead."""
        if not self.wait:
            return
        self.wait = False
        try:
            pending = await self._writer.ask(lambda book: book.pending_trips())
            for one in pending:
                if not await self._settled(one):
                    self.wait = True
        except BaseException:  # a store that cannot be had: what waits is tried again in the next turn
            self.wait = True
            raise

    async def _settled(self, pending: PendingTrip | DamagedTrip) -> bool:
        """Settle one; return whether it is. One that fails by a mistake of ours rests, and keeps no other back."""
        key = pending.number
        if not self._rests.due(key):
            return False
        try:
            if isinstance(pending, DamagedTrip):
                await self._set_aside(pending)
                settled = True
            else:
                settled = await self._trip_one(pending)
        except DecisionFailed:
            self._rests.failed(key)
            return False
        except StateError:
            raise
        except Exception:
            log.exception("alerts: trip %d failed", pending.number)
            self._listener.failed()
            self._rests.failed(key)
            return False
        self._rests.over(key)
        return settled

    async def _set_aside(self, damaged: DamagedTrip) -> None:
        log.error("alerts: trip %d is damaged and set aside: %.200s", damaged.number, damaged.text)
        episode = None
        if damaged.key is not None:
            key = damaged.key
            episode = await self._writer.ask(lambda book: book.episode(key))
        wanted = self._intake.wanted([] if episode is None else [alert_of(episode)], self._hands.now())
        await self._decide(wanted, lambda later: later.set_aside(damaged))

    async def _trip_one(self, pending: PendingTrip) -> bool:
        """Return whether it is settled. It is carried out once, however often it takes to write that down."""
        alert = alert_of(pending)
        carried = self._carried.get(pending.number)
        if carried is None:
            carried = await self._carry_out(pending, alert)
            if carried is None:
                return False
            self._carried[pending.number] = carried
        refusal, detail = carried
        wanted = self._intake.wanted((alert,), self._hands.now())
        await self._decide(wanted, lambda later: later.settle(pending, refusal, detail))
        del self._carried[pending.number]
        return True

    async def _carry_out(self, pending: PendingTrip, alert: Alert) -> tuple[TripRefusal | None, str] | None:
        """Return why it was not carried out, None if it was, and details; or None where that cannot be said yet."""
        trip, detail = pending.trip, ""
        # Its end may have come since, or while nobody looked. Ends are written by this process only, and until the
        # guard is asked nothing waits: what ends later ends after the trip began.
        episode = await self._writer.ask(lambda book: book.episode(alert.key))
        if episode is None or not episode.open:
            refusal: TripRefusal | None = TripRefusal.ENDED
        else:
            refusal = trip_refusal(trip, self._hands.now(), _age(pending, alert))
        if refusal is None:
            try:
                await self._hands.trip(trip.target, f"alert {alert.name} (route {trip.route})")
            except ValueError as error:
                refusal, detail = TripRefusal.FAILED, str(error)
            except DependencyError as error:
                detail = str(error)  # it is written down; the guard's next tick makes it true
            except StateError as error:
                log.warning("alerts: no trip of %s yet: %s", trip.target, error)
                return None
        return refusal, detail


def _age(pending: PendingTrip, alert: Alert) -> float:
    """Seconds since the alert began."""
    return pending.age_seconds + max(0.0, pending.at_wall - alert.starts_wall)
