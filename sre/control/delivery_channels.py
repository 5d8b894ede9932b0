"""The channels as the sender knows them: one try on each, how they do, and which are left alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from sre.actions.records import OutboxRow
from sre.clock import Clock
from sre.control.delivery_records import LABELS, ChannelStatistics, Key
from sre.notify.delivery import Cause, DeliveryResult, Send, Verdict
from sre.notify.forms import Rendered, render
from sre.notify.policy import Follow, Policy, after_try, is_down
from sre.notify.renderer import Render
from sre.settings.notify import ChannelSettings

log = logging.getLogger(__name__)

REPEATABLE = ("pagerduty",)
"""Kinds whose provider makes one event of a message and its repetitions: they carry one key."""

PATIENCE_SECONDS = 30.0
"""A provider that wants to be left alone for longer does not hold up what waits for it."""


class Channels:
    """Tries messages on channels and remembers how they ended."""

    def __init__(
        self, settings: Iterable[ChannelSettings], policy: Policy, clock: Clock, send: Send, draw: Render
    ) -> None:
        self._settings = {channel.name: channel for channel in settings}
        self._policy, self._clock, self._send, self._draw = policy, clock, send, draw
        self._failures: dict[str, int] = {}  # in a row
        self._paused: dict[str, float] = {}  # until when its provider wants to be left alone
        self._brought_forward: dict[str, set[int | Key]] = {}
        self.statistics = {name: ChannelStatistics() for name in self._settings}

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __getitem__(self, name: str) -> ChannelSettings:
        return self._settings[name]

    def __contains__(self, name: object) -> bool:
        return name in self._settings

    def paused(self, name: str) -> bool:
        """Whether its provider is to be left alone now."""
        return self._paused.get(name, 0.0) > self._clock.monotonic()

    def unavailable(self, name: str) -> str | None:
        """Return why what waits for a channel is to go to its fallback, too; None where it need not."""
        late = self._paused.get(name, 0.0) > self._clock.monotonic() + PATIENCE_SECONDS
        if not late and not is_down(self._failures.get(name, 0), self._policy):
            return None
        return self.statistics[name].last_error or "no answer"

    def brought_forward(self, name: str) -> set[int | Key]:
        """
        Messages that had their early try since the channel was last down: see ``EarlyTries``. A channel that delivers
        others and not this one is no reason for a second one.
        """
        return self._brought_forward.setdefault(name, set())

    async def attempt(self, row: OutboxRow) -> DeliveryResult:
        """Render and send once; count it. Never raises but CancelledError."""
        try:
            result = await self._send(self[row.channel], self._rendered(row))
        except Exception as error:  # a mistake of ours must not lose the page: it is tried again
            log.exception("notify: sending to %s failed", row.channel)
            result = DeliveryResult(Verdict.FAILED, f"{type(error).__name__}: {error}")
        statistics = self.statistics[row.channel]
        statistics.outcomes[LABELS.get(result.verdict, result.verdict.value)] += 1
        statistics.last_error = None if result.verdict is Verdict.DELIVERED else result.detail
        return result

    def _rendered(self, row: OutboxRow) -> Rendered:
        try:
            return self._draw(row.message, self[row.channel], row.opened)
        except Exception:  # a template is not worth a page: it goes out in our own words
            log.exception("notify: the form of %s for %s failed", row.message.incident_id, row.channel)
            return render(row.message, self[row.channel].kind, row.opened)

    def may_have_arrived(self, name: str, result: DeliveryResult) -> bool:
        """Whether a person may have got it by this try; where repetitions are one event, that does not matter."""
        return result.verdict is Verdict.UNKNOWN and self[name].kind not in REPEATABLE

    def follow(
        self,
        name: str,
        result: DeliveryResult,
        attempts: int,
        *,
        page: bool,
        urgent: bool,
        unknown_outcomes: int = 0,
        too_old: bool = False,
    ) -> Follow:
        """
        What follows a try; remembers how the channel does.

        Args:
            attempts: Tries of this message, this one included.
            unknown_outcomes: Those of them that ``may_have_arrived``.
        """
        if result.verdict is Verdict.DELIVERED:
            self._failures[name] = 0
        elif not too_old:
            self._failures[name] = self._failures.get(name, 0) + 1
            if is_down(self._failures[name], self._policy):
                self._brought_forward.pop(name, None)  # when it works again, that is another recovery
        wait = result.retry_after_seconds
        if result.cause is Cause.CREDENTIALS and self[name].kind == "email":
            # A mail server that counts refused log-ins locks the account, for everybody who uses it.
            self._pause(name, self._policy.max_backoff_seconds)
        elif result.cause is Cause.THROTTLED and wait is not None:
            self._pause(name, min(wait, self._policy.max_backoff_seconds))
        return after_try(
            result.verdict, self._policy, attempts=attempts, failures_in_row=self._failures.get(name, 0),
            page=page, urgent=urgent, unknown_outcomes=unknown_outcomes, retry_after_seconds=wait, too_old=too_old,
        )  # fmt: skip

    def _pause(self, name: str, seconds: float) -> None:
        """Leave it alone: what waits behind a message that was refused would be refused, too."""
        self._paused[name] = self._clock.monotonic() + seconds
