"""Checks of our own arithmetic: numbers that contradict each other are not published as if they were fine."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from sre.gate import saturation
from sre.gate.stages import StageLoad
from sre.gate.summary import ALL, USAGE_RATIO, StageSummary


@dataclass(frozen=True, slots=True)
class Check:
    """
    One self-check.

    Attributes:
        name: ``littles_law``, ``sums``, ``clock``, ``token_rates``, …
        ok: None: could not be made; ``detail`` says why.
        detail: With the numbers.
    """

    name: str
    ok: bool | None
    detail: str


TOLERANCE_RATIO = 0.05
WIDEST_RATIO = 0.25
"""A stage so small that chance alone moves Little's law by more is not checked by it."""
ROUNDING_SECONDS = 1e-6
MOST_NAMED = 3


def check_stage(load: StageLoad, summary: StageSummary) -> tuple[Check, ...]:
    """Every check that one stage's records allow."""
    return (littles_law(load, summary), sums(load, summary), clock(load), token_rates(load, summary))


def littles_law(load: StageLoad, summary: StageSummary) -> Check:
    """
    Mean in flight = answers per second x mean time in flight, within 5 %, in a stage that is steady.

    Counted by different hands: the samples of the sender, and the stamps of the records. Beyond 5 % chance is allowed
    for: a curve of few independent samples wavers.
    """
    name = "littles_law"
    if summary.saturated is not False or load.aborted:
        return Check(name, None, "not steady: saturated, given up or not known")
    start, end = saturation.steady_from(load), min(load.schedule_ended_at, load.stopped_at)
    window = [s.in_flight for s in load.in_flight if start <= s.at <= end]
    stays = [
        (max(record.sent_at, start), min(record.ended_at, end))
        for record in load.records
        if record.sent_at is not None and record.ended_at is not None
    ]
    inside = sum(max(0.0, left - came) for came, left in stays) / max(end - start, 1e-9)
    if not window or inside <= 0:
        return Check(name, None, "nothing was in flight in the steady part")
    measured = sum(window) / len(window)
    mean_stay = inside / max(summary.completed_rps, 1e-9)
    independent = min(len(window), (end - start) / max(mean_stay, 1e-9))
    tolerance = max(TOLERANCE_RATIO, 3 / math.sqrt(max(inside * independent, 1e-9)))
    if tolerance > WIDEST_RATIO:
        return Check(name, None, f"too little load to tell: {inside:.2f} in flight, {len(window)} samples")
    error = abs(measured - inside) / inside
    return Check(
        name,
        error <= tolerance,
        f"in flight {measured:.2f} by samples, {inside:.2f} by rate x time: {error:.1%} apart, {tolerance:.1%} allowed",
    )


def sums(load: StageLoad, summary: StageSummary) -> Check:
    """Every request that became due is one of ok, failed, cancelled or shed; classes add up to all; numbers once."""
    wrong = []
    parts = summary.ok + summary.failed + summary.cancelled + summary.shed
    if parts != len(load.records):
        wrong.append(f"{len(load.records)} due, {parts} accounted for")
    if len({record.number for record in load.records}) != len(load.records):
        wrong.append("a request number came twice")
    if load.aborted is None and len(load.records) != load.planned:
        wrong.append(f"{load.planned} planned, {len(load.records)} recorded")
    if load.aborted is None and summary.cancelled:
        # Neither ok nor failed: they would be missing from every percentile, and they are the slow ones.
        wrong.append(f"{summary.cancelled} cancelled in a stage that ran to its end")
    by_class = sum(kind.planned for name, kind in summary.classes.items() if name != ALL)
    if by_class != len(load.records):
        wrong.append(f"classes hold {by_class} of {len(load.records)}")
    if wrong:
        return Check("sums", False, "; ".join(wrong))
    return Check(
        "sums",
        True,
        f"{len(load.records)} due = {summary.ok} ok + {summary.failed} failed + {summary.cancelled} cancelled + "
        f"{summary.shed} held back",
    )


def clock(load: StageLoad) -> Check:
    """Lag >= 0, stamps in order, 0 < TTFT <= e2e."""
    wrong = []
    for record in load.records:
        stamps = (record.intended_at, record.sent_at, record.head_at, record.first_content_at, record.ended_at)
        known = [stamp for stamp in stamps if stamp is not None]
        if any(later < earlier - ROUNDING_SECONDS for earlier, later in itertools.pairwise(known)):
            wrong.append(f"request {record.number}: stamps out of order")
        elif not record.failed and record.first_content_at is not None and record.ttft_seconds <= 0:
            wrong.append(f"request {record.number}: first token before it was asked for")
    if not wrong:
        return Check("clock", True, f"{len(load.records)} requests: lag >= 0, 0 < TTFT <= e2e")
    return Check("clock", False, f"{len(wrong)} requests: " + "; ".join(wrong[:MOST_NAMED]))


def token_rates(load: StageLoad, summary: StageSummary) -> Check:
    """The highest count is at least the mean, and no answer is longer than it was allowed to be."""
    name = "token_rates"
    if summary.in_flight and summary.in_flight_max + ROUNDING_SECONDS < summary.in_flight_mean:
        return Check(name, False, f"in flight: peak {summary.in_flight_max} below mean {summary.in_flight_mean:.2f}")
    too_long = [
        record.number
        for record in load.records
        if not record.failed and (record.output_tokens or 0) > (record.max_tokens or math.inf)
    ]
    if too_long:
        return Check(name, False, f"{len(too_long)} answers longer than max_tokens, request {too_long[0]} first")
    counted = sum(1 for record in load.records if record.output_tokens is not None)
    if not counted:
        return Check(name, None, "the server reports no usage: tokens are not counted")
    if counted < USAGE_RATIO * summary.ok:
        without = f"{summary.ok - counted} of {summary.ok} answers came without usage"
        return Check(name, None, f"{without}: tokens per second and per-token times are not given")
    return Check(name, True, f"{counted} answers counted by the server's usage")
