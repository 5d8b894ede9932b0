"""The one way to the alert tables, beside the loop; and whether it is open."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from sre.clock import Clock
from sre.control.alert_ports import AlertBook
from sre.control.blocking import BlockingCalls
from sre.errors import StateError
from sre.notify.alert_draft import Moment
from sre.notify.alert_records import Changes, Known, Wanted

log = logging.getLogger("sre.webhook")

T = TypeVar("T")

LOG_AGAIN_SECONDS = 60.0


class DecisionFailed(StateError):
    """A mistake of ours about what was to be decided, not of the store."""


class AlertWriter:
    """
    Args:
        book: None when there is no state that can be written; ``problem`` then says why.
        committed: Called in the loop with what was written.
        failed: Called after a mistake of ours.
    """

    def __init__(
        self,
        book: AlertBook | None,
        clock: Clock,
        *,
        problem: str,
        seconds: float,
        committed: Callable[[Changes], None] = lambda _: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.book, self._clock, self._committed, self._failed = book, clock, committed, failed
        self._calls = BlockingCalls("alerts: guard state", seconds=seconds)
        self._logged: tuple[str, float] | None = None
        self.unsure = False
        """A call failed since this was last set back. One that was given up for being slow may have been written."""
        self.problem: str | None = problem or None
        """Why nothing can be written now; None while it can, or while nothing was tried."""

    def now(self) -> Moment:
        return Moment(self._clock.wall(), self._clock.monotonic())

    async def ask(self, call: Callable[[AlertBook], T]) -> T:
        """Return what ``call`` returns. Raises StateError."""
        book = self.book
        if book is None:
            raise StateError(self.problem or "guard state: not there")
        return await self._calls(lambda: call(book))

    async def change(self, wanted: Wanted, decide: Callable[[Known], Changes]) -> Changes:
        """
        Decide and write; whoever has to go on is told.

        Raises:
            StateError: Nothing was written. DecisionFailed: The store is not to blame.
        """
        try:
            changes = await self.ask(lambda book: book.change(wanted, decide))
        except StateError as error:
            self.fails(error)
            raise
        except Exception as error:
            log.exception("alerts: a decision failed")
            self._failed()
            raise DecisionFailed(f"webhook: {type(error).__name__}: {error}") from error
        self.works()
        self._committed(changes)
        return changes

    def works(self) -> None:
        """Something was written."""
        if self.problem is not None:
            log.warning("alerts: the guard's state can be written again")
        self.problem = self._logged = None

    def fails(self, error: StateError) -> None:
        """Something could not be written or read."""
        if isinstance(error, DecisionFailed):
            return  # logged where it happened
        self.unsure = True
        sentence, now = str(error), self._clock.monotonic()
        if self._logged is None or self._logged[0] != sentence or now - self._logged[1] >= LOG_AGAIN_SECONDS:
            self._logged = sentence, now
            log.error("%s; Alertmanager is told to come again", sentence)
        self.problem = sentence
