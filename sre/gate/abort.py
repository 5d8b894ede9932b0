"""When a stage is given up: nothing it could still show would change the answer."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sre.gate.stages import LiveCounts, StageKind, StagePlan
from sre.gate.statistics import wilson
from sre.settings.gate import ObjectiveSettings


class AbortReason(enum.Enum):
    """Why; one name in JSON, reports and tests."""

    ERROR_SHARE = "error_share"  # more fail than the objective allows, beyond chance
    OVER_LIMIT = "over_limit"  # more than 1 % of all planned requests are over the P99 objective already: exact
    IN_FLIGHT_CAP = "in_flight_cap"  # the client may hold no more requests open
    DEADLINE = "deadline"  # of the whole run
    INTERRUPTED = "interrupted"  # Ctrl-C
    SERVER_GONE = "server_gone"  # it does not take connections any more


LEAST_ENDED = 50
"""Fewer say nothing about a share."""
SURE = 0.9995
"""Confidence of the bound: it is looked at some hundred times in a stage, and may not fire by chance in any of them."""
CAP_SHARE = 0.95
"""Of the client's limit of requests in flight: the stage ends before the client itself would hold requests back."""
HOPELESS_SHARE = 0.5
"""Where no objective bounds failures: with every second request failing nothing else is worth measuring."""

SENTENCES = {
    AbortReason.ERROR_SHARE: "too many requests fail",
    AbortReason.OVER_LIMIT: "the P99 objective cannot be met any more",
    AbortReason.IN_FLIGHT_CAP: (
        "the client's limit of requests in flight is reached (gate.load.max_in_flight; or of open files: ulimit -n)"
    ),
    AbortReason.DEADLINE: "the deadline of the whole run has come (gate.deadline_seconds)",
    AbortReason.INTERRUPTED: "stopped by a person",
    AbortReason.SERVER_GONE: "the server takes no connections any more",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Of one stage.

    Attributes:
        failed_ratio: Share of failures it may have.
        ttft_limit_seconds: P99 of the time to first token it may have; None: not bounded, or not for all classes.
        deadline_at: Monotonic.
        max_in_flight: Of the client; None: not bounded.
    """

    failed_ratio: float = HOPELESS_SHARE
    ttft_limit_seconds: float | None = None
    deadline_at: float = math.inf
    max_in_flight: int | None = None


def limits_of(plan: StagePlan, objectives: Sequence[ObjectiveSettings], deadline_at: float) -> Limits:
    """
    What ``plan`` is given up for. Only stages of the staircase are under objectives: the others look for what happens
    beyond them.
    """
    ratios, ttfts = [HOPELESS_SHARE], []
    for objective in objectives if plan.kind is StageKind.STAIRCASE else ():
        if not applies(objective, plan):
            continue
        if objective.failed_ratio is not None:
            ratios.append(objective.failed_ratio)
        if objective.ttft_p99_seconds is not None:
            ttfts.append(objective.ttft_p99_seconds)
    return Limits(min(ratios), min(ttfts, default=None), deadline_at)


def applies(objective: ObjectiveSettings, plan: StagePlan) -> bool:
    """Whether ``objective`` bounds all requests of the stage (of one class among several it cannot be counted live)."""
    if objective.stage is not None and objective.stage != plan.name:
        return False
    if objective.stage is None and objective.max_qps is not None and plan.rate_rps > objective.max_qps * (1 + 1e-9):
        return False
    return objective.request_class is None or {kind.name for kind in plan.classes} == {objective.request_class}


def decide(counts: LiveCounts, limits: Limits) -> AbortReason | None:
    """The first reason there is, in this order; None: go on."""
    ended = counts.ok + counts.failed
    if ended >= LEAST_ENDED and wilson(counts.failed, ended, SURE)[0] > limits.failed_ratio:
        return AbortReason.ERROR_SHARE
    if limits.ttft_limit_seconds is not None and counts.over_limit > math.floor(0.01 * counts.planned):
        return AbortReason.OVER_LIMIT
    if counts.shed > 0 or (limits.max_in_flight is not None and counts.in_flight >= CAP_SHARE * limits.max_in_flight):
        return AbortReason.IN_FLIGHT_CAP
    if counts.at >= limits.deadline_at:
        return AbortReason.DEADLINE
    return None


def explain(reason: str) -> str:
    """A sentence for people."""
    try:
        return SENTENCES[AbortReason(reason)]
    except ValueError:
        return reason
