"""
Failed batches, seen from the gateway.

vLLM has no counter of failed batches. Requests of one engine that end together came out of one engine step, so
requests that end within ``BATCH_SECONDS`` of the first of them are taken as one batch; it failed when none of them
succeeded and at least one failed. Under low traffic a batch is one request: three failed requests in a row, each
ending apart, are three failed batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sre.actions.types import FinishedRequest, Outcome

BATCH_SECONDS = 0.1
"""Ends of one step reach the log within a few milliseconds; counted from the first end, so that a busy engine's steps
do not chain into one endless batch."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Run of failed batches of one engine."""

    failed_in_row: int = 0
    """Closed failed batches since the last good one."""
    batch_began_wall: float | None = None
    """When the first request of the open batch ended."""
    batch_failed: bool = False
    batch_succeeded: bool = False

    @property
    def consecutive_failed(self) -> int:
        """Failed batches in a row, the open one included."""
        if self.batch_succeeded:
            return 0
        return self.failed_in_row + (1 if self.batch_failed else 0)


def observe_finished(run: BatchRun, finished: Iterable[FinishedRequest]) -> BatchRun:
    """Return ``run`` after ``finished`` (any order) ended. Neutral requests change nothing."""
    verdicts = (r for r in finished if r.outcome is not Outcome.NEUTRAL)
    for request in sorted(verdicts, key=lambda r: r.started_wall + r.duration_seconds):
        ended = request.started_wall + request.duration_seconds
        if run.batch_began_wall is None or not 0 <= ended - run.batch_began_wall <= BATCH_SECONDS:
            run = BatchRun(failed_in_row=run.consecutive_failed, batch_began_wall=ended)
        failed = request.outcome is Outcome.FAILURE
        run = replace(
            run,
            batch_failed=run.batch_failed or failed,
            batch_succeeded=run.batch_succeeded or not failed,
        )
    return run
