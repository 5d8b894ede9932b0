"""What the webhook counts, for the guard's /metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sre.metrics import own
from sre.metrics.types import Metric
from sre.notify.alert_records import Verdict
from sre.servers.alert_webhook import OUTCOMES
from sre.servers.exporter import Metrics
from sre.servers.exposition import Row

KEPT = (
    own.WEBHOOK_REQUESTS,
    own.WEBHOOK_ALERTS,
    own.WEBHOOK_UNREADABLE,
    own.WEBHOOK_TRUNCATED,
    own.WEBHOOK_COMMIT_SECONDS,
)

BOUNDARY = "webhook"
"""As ``sre_guard_errors_total`` calls it."""


class WebhookMetrics:
    """The webhook's listener. Its series are there, at 0, from the moment it is made."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        metrics.keep(*KEPT)
        for outcome in OUTCOMES:
            metrics.count(own.WEBHOOK_REQUESTS, outcome, by=0.0)
        for verdict in Verdict:
            for state in ("firing", "resolved"):
                metrics.count(own.WEBHOOK_ALERTS, state, verdict.value, by=0.0)
        metrics.count(own.GUARD_ERRORS, BOUNDARY, by=0.0)
        self.listening = False
        self.deaf = ""
        """Why it does not listen, as a sentence; "" while nothing stands in the way."""
        self.problem: Callable[[], str | None] = lambda: None
        """Why nothing that is posted can be stored; None while it can."""
        self._heartbeat_wall: float | None = None

    def not_taken_in(self) -> str:
        """Why alerts are not taken in now, as a sentence; "" while nothing stands in the way."""
        return self.deaf or self.problem() or ""

    def requested(self, outcome: str) -> None:
        """One request ended so."""
        self._metrics.count(own.WEBHOOK_REQUESTS, outcome)

    def alert(self, firing: bool, verdict: Verdict) -> None:
        self._metrics.count(own.WEBHOOK_ALERTS, "firing" if firing else "resolved", verdict.value)

    def unreadable(self, alerts: int) -> None:
        self._metrics.count(own.WEBHOOK_UNREADABLE, by=float(alerts))

    def truncated(self, alerts: int) -> None:
        self._metrics.count(own.WEBHOOK_TRUNCATED, by=float(alerts))

    def committed(self, seconds: float) -> None:
        self._metrics.observe(own.WEBHOOK_COMMIT_SECONDS, seconds)

    def heartbeat(self, wall: float) -> None:
        self._heartbeat_wall = wall

    def failed(self) -> None:
        """A mistake of ours was outlived."""
        self._metrics.failed(BOUNDARY)

    def rows(self) -> Mapping[Metric, list[Row]]:
        """What is read at the scrape."""
        up = 1.0 if self.listening and not self.not_taken_in() else 0.0
        rows: dict[Metric, list[Row]] = {own.WEBHOOK_UP: [((), up)]}
        if self._heartbeat_wall is not None:
            rows[own.WEBHOOK_HEARTBEAT_TIMESTAMP] = [((), self._heartbeat_wall)]
        return rows
