"""How a try of a stored message is written down."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sre.actions.records import OutboxRow
from sre.clock import Clock
from sre.control.delivery_records import ChannelStatistics, Outcome
from sre.control.outbox_port import Outbox
from sre.notify.delivery import Cause, DeliveryResult
from sre.notify.outcomes import REMEDIES
from sre.notify.policy import Because, Follow, Next, Policy

log = logging.getLogger(__name__)


class Marks:
    """Makes the writes of one sender; they are carried out by ``Outcomes``."""

    def __init__(
        self, store: Outbox, owner: str, policy: Policy, clock: Clock, statistics: Mapping[str, ChannelStatistics]
    ) -> None:
        self._store, self._owner, self._policy, self._clock = store, owner, policy, clock
        self._statistics = statistics

    def after(
        self, row: OutboxRow, result: DeliveryResult, follow: Follow, *, attempts: int, unknown: int, wait: float
    ) -> Outcome:
        """
        What follows a try; logged.

        Args:
            attempts: Tries, this one included.
            unknown: Those of them that may have arrived.
            wait: Seconds until the next one.
        """
        store, owner, detail = self._store, self._owner, result.detail
        if follow.because is Because.OUTCOME_UNKNOWN:
            detail = f"{detail}; so {unknown} times: {REMEDIES[Cause.OUTCOME_UNKNOWN]}"
        fallback = self._policy.fallbacks.get(row.channel) if follow.fallback else None
        if follow.next is Next.SENT:
            return Outcome(lambda: store.mark_sent(row.id, owner=owner), attempts, None)
        also = f"; {fallback} is told" if fallback is not None and not row.fell_back else ""
        if follow.next is Next.GIVE_UP:
            self._statistics[row.channel].dead += 1
            log.error(
                "outbox: %s to %s is given up (%s): %s%s",
                row.message.incident_id, row.channel, follow.because.value, detail, also,
            )  # fmt: skip
            return Outcome(
                lambda: store.mark_dead(row.id, owner=owner, error=detail, fallback=fallback, unknown_outcomes=unknown),
                attempts,
                None,
            )
        log.warning(
            "outbox: %s to %s: try %d %s (%s): %s; again in %.0f s%s",
            row.message.incident_id, row.channel, attempts, result.verdict.value, follow.because.value, detail, wait,
            also,
        )  # fmt: skip
        return self._failed(row, detail, fallback, attempts=attempts, unknown=unknown, wait=wait)

    def mistaken(self, row: OutboxRow, error: Exception, *, attempts: int, unknown: int, wait: float) -> Outcome:
        """
        A mistake of ours in what surrounds the try: it is repeated like one that failed. The message may have gone out.
        """
        said = f"a mistake of sre, see the guard's log: {type(error).__name__}: {error}"
        often = attempts >= self._policy.fallback_after_attempts
        fallback = self._policy.fallbacks.get(row.channel) if often else None
        return self._failed(row, said, fallback, attempts=attempts, unknown=unknown, wait=wait)

    def _failed(
        self, row: OutboxRow, detail: str, fallback: str | None, *, attempts: int, unknown: int, wait: float
    ) -> Outcome:
        store, owner = self._store, self._owner
        return Outcome(
            lambda: store.mark_failed(
                row.id, owner=owner, error=detail, retry_after_seconds=wait, fallback=fallback, unknown_outcomes=unknown
            ),
            attempts,
            self._clock.monotonic() + wait,
            unknown,
        )
