"""Requests that were still in flight when the tool ended its measurement."""

from __future__ import annotations

from collections.abc import Sequence

from sre.gate.records import Cause, Outcome, RequestRecord
from sre.gate.self_checks import Check

MOST_UNKNOWN_RATIO = 0.01
"""Of the requests: with more of them unknown, a P99 may lie among these."""


def settled(records: Sequence[RequestRecord]) -> tuple[list[RequestRecord], int, int]:
    """
    Return what can be judged of ``records``, how many were left out, and how many of the rest are now TIMEOUT.

    To leave out just those that were cut off would leave out the slow ones. So the end of the schedule goes as a whole:
    whatever was due later than the longest answer before the cut. What was due before that, and still had no answer,
    took longer than every request that got one: it failed.
    """
    cut_off = [record for record in records if record.cause is Cause.CANCELLED]
    if not cut_off:
        return list(records), 0, 0
    last = max(record.ended_at or record.sent_at or record.intended_at for record in records)
    cut = min(last if record.ended_at is None else record.ended_at for record in cut_off)
    longest = max((record.e2e_seconds for record in records if record.cause is Cause.OK), default=0.0)
    kept = [record for record in records if record.intended_at <= cut - longest]
    overdue = 0
    for record in kept:
        if record.cause is Cause.CANCELLED:
            record.cause, record.outcome = Cause.TIMEOUT, Outcome.FAILURE
            record.detail = "no whole answer when the tool ended its measurement"
            overdue += 1
    return kept, len(records) - len(kept), overdue


def all_ended(name: str, records: Sequence[RequestRecord]) -> Check | None:
    """Fails where so many requests of stage ``name`` were cancelled that percentiles of the rest mislead; else None."""
    cancelled = sum(record.cause is Cause.CANCELLED for record in records)
    if cancelled <= MOST_UNKNOWN_RATIO * len(records):
        return None
    detail = (
        f"{name}: {cancelled} of {len(records)} requests were cancelled; how slow they would have been is not known"
    )
    return Check("all_requests_ended", False, detail)
