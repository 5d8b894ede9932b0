"""
What time brings to alerts: trips that wait, a heartbeat that stays away, firings that outlive or are forgotten, what a
limit kept back, refusals a person must know of, folders, a store that works again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from sre.clock import Clock
from sre.control.alert_folders import AlertFolders
from sre.control.alert_ports import AlertListener, Hands
from sre.control.alert_trips import AlertTrips
from sre.control.alert_writer import LOG_AGAIN_SECONDS, AlertWriter, DecisionFailed
from sre.control.resting import Rests
from sre.errors import StateError
from sre.notify.alert_decide import Intake, alert_of
from sre.notify.alert_knocks import NOBODY, Knocks
from sre.notify.alert_later import Later
from sre.notify.alert_limits import INCIDENT_ACTION, NOTICE_ACTION
from sre.notify.alert_records import (
    HEARTBEAT_KEY,
    LOCKED_OUT_KEY,
    AlertIncident,
    Changes,
    Episode,
    Known,
    LeftOut,
    Wanted,
)

log = logging.getLogger("sre.webhook")

TURN_SECONDS = 1.0
OUTLIVES_SECONDS = 300.0
"""So long an alert may go on firing after the guard closed the incident that it had joined: its own end takes a
scrape, an evaluation and a group_interval to come."""
LOOK_SECONDS = 15.0
LOOKED_AT = 200
"""Firings looked at in one turn."""
INCIDENTS_AT_ONCE = 100
LEFT_OUT_AT_ONCE = 1_000
"""Alerts that one message about what was kept back stands for."""
LISTENED_SECONDS = 6 * 3600.0
"""Nothing is forgotten before this process has listened so long: a wall clock that was wrong when it started, or that
jumped, ends no firing. Whatever goes on is spoken of within Alertmanager's repeat_interval."""
PROBE_SECONDS = 5.0
GRACE_SECONDS = 120.0
"""After a start the heartbeat has this long, or its timeout, to be heard first."""
FOLDERS_AT_ONCE = 20
LOST_AGAIN_SECONDS = 3600.0


class AlertDuties:
    """Does what is due, turn by turn."""

    def __init__(
        self,
        intake: Intake,
        writer: AlertWriter,
        hands: Hands,
        clock: Clock,
        listener: AlertListener,
        folders: AlertFolders,
    ) -> None:
        self._intake, self._writer, self._hands, self._clock = intake, writer, hands, clock
        self._listener, self._folders = listener, folders
        self._hurry = asyncio.Event()
        self._rests = Rests(clock)
        self._started = clock.monotonic()
        self._heard: float | None = None
        """Monotonic time of the last heartbeat as far as known."""
        self._silent = False
        self._trips = AlertTrips(intake, writer, hands, clock, listener, self._decide)
        self._files_wait = True
        self._folders_logged: float | None = None
        self._looked = self._caught_up = self._probed = clock.monotonic()
        self._outlived: dict[str, float] = {}
        self._to_tell: dict[str, Callable[[Later], None]] = {}
        self._told_at: dict[str, float] = {}
        self._knocks, self._somebody_came = NOBODY, False
        self._locked_out: bool | None = None
        """Whether a person was told so; None: not known since the start."""

    def committed(self, changes: Changes) -> None:
        """This was written; some of it is to be gone on with."""
        if changes.heartbeat:
            self._heard, self._silent = self._clock.monotonic(), False
            self._listener.heartbeat(self._clock.wall())
        self._files_wait = self._files_wait or any(one.listed for one in changes.incidents)
        if changes.trips:
            self._trips.wait = True
            self._hurry.set()

    @property
    def knocks(self) -> Knocks:
        """Who was turned away since somebody was let in."""
        return self._knocks

    def turned_away(self) -> None:
        """Somebody's credentials did not fit."""
        self._knocks = self._knocks.more(self._clock.monotonic())

    def let_in(self) -> None:
        """Somebody's credentials fitted."""
        self._knocks, self._somebody_came = NOBODY, True

    def lost(self, cause: str, sentence: str) -> None:
        """A notification of somebody who may post was refused for good; a person is told, once an hour per cause."""
        self._tell_once(f"lost {cause}", lambda later: later.lost(cause, sentence))

    def uncertified(self, sentence: str) -> None:
        """A renewed certificate cannot be used; a person is told, once an hour."""
        self._tell_once("certificate", lambda later: later.uncertified(sentence))

    def _tell_once(self, name: str, what: Callable[[Later], None]) -> None:
        told = self._told_at.get(name)
        if told is None or self._clock.monotonic() - told >= LOST_AGAIN_SECONDS:
            self._to_tell[name] = what
            self._hurry.set()

    async def run(self) -> None:
        """Until cancelled."""
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
        if self._writer.book is None:
            return
        if self._writer.unsure:
            # A transaction that took too long may be on disk, and nobody was told what it wrote.
            self._writer.unsure = False
            self._trips.wait = self._files_wait = True
        for duty in (
            self._probe,
            self._trip,
            self._listen,
            self._guard_door,
            self._tell,
            self._look,
            self._catch_up,
            self._file,
        ):
            name = duty.__name__
            if not self._rests.due(name):
                continue
            try:
                await duty()
            except DecisionFailed:
                self._rests.failed(name)
            except StateError as error:
                self._writer.fails(error)
            except Exception:  # the webhook's own cycle boundary: one duty that fails must not stop the others
                log.exception("alerts: %s failed", name)
                self._listener.failed()
                self._rests.failed(name)
            else:
                self._rests.over(name)

    async def _probe(self) -> None:
        """Find out whether a store that failed works again, though nobody posts."""
        now = self._clock.monotonic()
        if self._writer.problem is None or now - self._probed < PROBE_SECONDS:
            return
        self._probed = now
        await self._writer.ask(lambda book: book.probe())
        self._writer.works()

    async def _tell(self) -> None:
        for name, what in list(self._to_tell.items()):
            if not self._rests.due(("tell", name)):
                continue
            try:
                await self._decide(Wanted(), what)
            except DecisionFailed:
                self._rests.failed(("tell", name))
                continue
            self._rests.over(("tell", name))
            self._told_at[name] = self._clock.monotonic()
            self._to_tell.pop(name, None)

    async def _listen(self) -> None:
        """Tell of a heartbeat that stays away, once."""
        settings = self._intake.settings.heartbeat
        if self._silent:
            return
        wanted = Wanted(join_keys=frozenset({HEARTBEAT_KEY}))
        if not settings.enabled:
            await self._decide(wanted, Later.unwatch)
            self._silent = True
            return
        now = self._clock.monotonic()
        if self._heard is None:
            self._heard = now - await self._writer.ask(lambda book: book.heartbeat_age())
        deadline = max(
            self._heard + settings.timeout_seconds,
            self._started + min(GRACE_SECONDS, settings.timeout_seconds),
        )
        if now < deadline:
            return
        silent = now - self._heard
        turned_away = self._knocks.turned_away
        await self._decide(wanted, lambda later: later.silence(silent, turned_away))
        self._silent = True

    async def _trip(self) -> None:
        """Carry out the trips that are written down."""
        await self._trips.turn()

    async def _guard_door(self) -> None:
        """Tell where all posts are turned away and no heartbeat would be missed; and its end."""
        if self._writer.problem is not None:
            return  # found out by ``_probe`` whether it is over
        wanted, knocks, now = Wanted(join_keys=frozenset({LOCKED_OUT_KEY})), self._knocks, self._clock.monotonic()
        if self._somebody_came and self._locked_out is not False:
            await self._decide(wanted, Later.let_in)
            self._locked_out = self._somebody_came = False
        elif not self._intake.settings.heartbeat.enabled and not self._locked_out and knocks.locked_out(now):
            self._somebody_came = False
            await self._decide(wanted, lambda later: later.lock_out(knocks.turned_away, now - knocks.first))
            self._locked_out = True

    # ---- firings -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Firings that outlive the guard's incident, and firings nobody speaks of any more."""
        at = self._clock.monotonic()
        if at - self._looked < LOOK_SECONDS:
            return
        self._looked = at
        over = await self._writer.ask(lambda book: book.joined_of_guard())
        over -= frozenset(self._hands.now().incidents.values())
        self._outlived = {one: self._outlived.get(one, at) for one in sorted(over)}
        due = [one for one, since in self._outlived.items() if at - since >= OUTLIVES_SECONDS][:INCIDENTS_AT_ONCE]
        if due:
            outliving = await self._writer.ask(lambda book: book.firing_of(due, LOOKED_AT))
            await self._decide_on(outliving, Later.outlives)
        forget = self._intake.settings.forget_after_seconds
        if at - self._started < min(forget, LISTENED_SECONDS):
            return
        before = self._clock.wall() - forget
        await self._decide_on(await self._writer.ask(lambda book: book.unheard(before, LOOKED_AT)), Later.forget)

    async def _decide_on(self, episodes: Sequence[Episode], what: Callable[[Later, Episode], None]) -> None:
        if not episodes:
            return

        def each(later: Later) -> None:
            for episode in episodes:
                present = later.present(episode)
                if present is not None:
                    what(later, present)

        try:
            await self._decide(self._intake.wanted(map(alert_of, episodes), self._hands.now()), each)
        except DecisionFailed:
            if len(episodes) == 1:
                return  # logged; the others are not kept back
            for one in episodes:
                await self._decide_on([one], what)

    async def _catch_up(self) -> None:
        """Tell what limits kept back, where they allow it again."""
        at = self._clock.monotonic()
        if at - self._caught_up < LOOK_SECONDS:
            return
        self._caught_up = at
        for route in await self._writer.ask(lambda book: book.left_out(1)):
            if not self._rests.due(("left out", route)):
                continue
            try:
                await self._catch_up_with(route)
            except DecisionFailed:
                self._rests.failed(("left out", route))  # logged; the other routes are not kept back
                continue
            self._rests.over(("left out", route))

    async def _catch_up_with(self, route: str) -> None:
        # The oldest says whether the time has come; only then all are read.
        oldest, _ = (await self._writer.ask(lambda book: book.left_out(1))).get(route, ((), 0))
        may: list[bool] = []
        await self._decide(_wanted(route, oldest), lambda later: may.append(later.may_tell(route, oldest)))
        if any(may):
            left, more = (await self._writer.ask(lambda book: book.left_out(LEFT_OUT_AT_ONCE))).get(route, ((), 0))
            await self._decide(_wanted(route, left), lambda later: later.tell_left_out(route, left, more))

    async def _file(self) -> None:
        """Make folders of incidents, and close them."""
        if not self._files_wait:
            return
        self._files_wait = False
        try:
            incidents = await self._writer.ask(lambda book: book.unfiled(FOLDERS_AT_ONCE))
            if incidents:
                if not await self._written(incidents):
                    self._files_wait = True
                    return
                await self._writer.ask(lambda book: book.mark_filed(incidents))
                self._files_wait = True
        except BaseException:
            self._files_wait = True
            raise

    async def _written(self, incidents: Sequence[AlertIncident]) -> bool:
        """Whether their folders are there. A disk that refuses them costs the folders: alerts are taken in and told."""
        try:
            await self._folders.write(incidents)
        except StateError as error:
            now = self._clock.monotonic()
            if self._folders_logged is None or now - self._folders_logged >= LOG_AGAIN_SECONDS:
                self._folders_logged = now
                log.error("%s; what alerts opened has no folder yet", error)
            return False
        self._folders_logged = None
        return True

    # ---- parts -------------------------------------------------------------------------------------------------------

    async def _decide(self, wanted: Wanted, what: Callable[[Later], None]) -> None:
        guard, now = self._hands.now(), self._writer.now()

        def decide(known: Known) -> Changes:
            later = Later(self._intake, known, guard, now)
            what(later)
            return later.changes()

        await self._writer.change(wanted, decide)


def _wanted(route: str, left: Sequence[LeftOut]) -> Wanted:
    return Wanted(
        keys=frozenset(one.key for one in left),
        intents=frozenset({(INCIDENT_ACTION, route), (NOTICE_ACTION, route)}),
        incidents=frozenset(one.incident_id for one in left if one.incident_id is not None),
    )
