"""What a stage sends, when, to the last byte that is ours to choose; the same for the same plan, on any machine."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from sre.gate.arrivals import TraceEntry, constant, poisson
from sre.gate.stages import Arrivals, RequestClass, StagePlan

BASE = "base"
"""Stream of the plan's own classes; each extra class is a stream of its own, named by the class."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """
    One request of a schedule.

    Attributes:
        number: Position in the whole schedule, from 0, in order of time.
        offset_seconds: From the start of the stage.
        request_class: Its headers and whether its length is fixed; sizes are this request's own (a trace has others).
        stream, index: Which schedule it comes from and its place there: the same with and without extra classes.
    """

    number: int
    offset_seconds: float
    request_class: RequestClass
    prompt_tokens: int
    max_tokens: int
    stream: str
    index: int


def schedule(plan: StagePlan, trace: Sequence[TraceEntry] = ()) -> list[PlannedRequest]:
    """
    Return every request of ``plan`` in order of time.

    The stream of the plan's own classes does not depend on ``extra_classes``: times, classes and sizes are equal with
    and without them. A replay sends the entries of ``trace`` before ``duration_seconds``, as the first class.
    """
    streams = [_base(plan, trace)]
    for extra in plan.extra_classes:
        offsets = _offsets(plan, plan.rate_rps * extra.share, extra.name)
        streams.append(
            [
                PlannedRequest(0, offset, extra, extra.prompt_tokens, extra.max_tokens, extra.name, index)
                for index, offset in enumerate(offsets)
            ]
        )
    merged = sorted(itertools.chain.from_iterable(streams), key=lambda request: request.offset_seconds)
    return [
        PlannedRequest(
            number, one.offset_seconds, one.request_class, one.prompt_tokens, one.max_tokens, one.stream, one.index
        )
        for number, one in enumerate(merged)
    ]


def thinned(whole: Sequence[PlannedRequest], part: int, parts: int) -> Sequence[PlannedRequest]:
    """Return the share of process ``part`` (from 0) of ``parts``: all shares together are the whole, none twice."""
    return whole[part::parts]


def arrival_rps(plan: StagePlan) -> float:
    """Mean arrivals per second of all streams."""
    return plan.rate_rps * (1 + sum(extra.share for extra in plan.extra_classes))


def _base(plan: StagePlan, trace: Sequence[TraceEntry]) -> list[PlannedRequest]:
    if plan.arrivals is Arrivals.REPLAY:
        return [
            PlannedRequest(0, one.offset_seconds, plan.classes[0], one.prompt_tokens, one.max_tokens, BASE, index)
            for index, one in enumerate(sorted(trace, key=lambda one: one.offset_seconds))
            if one.offset_seconds < plan.duration_seconds
        ]
    offsets = _offsets(plan, plan.rate_rps, BASE)
    chance = random.Random(f"{plan.seed}/classes")
    chosen = chance.choices(plan.classes, [one.share for one in plan.classes], k=len(offsets))
    return [
        PlannedRequest(0, offset, kind, kind.prompt_tokens, kind.max_tokens, BASE, index)
        for index, (offset, kind) in enumerate(zip(offsets, chosen, strict=True))
    ]


def _offsets(plan: StagePlan, rate_rps: float, stream: str) -> list[float]:
    if plan.arrivals is Arrivals.CONSTANT:
        return constant(rate_rps, plan.duration_seconds)
    return poisson(rate_rps, plan.duration_seconds, random.Random(f"{plan.seed}/arrivals/{stream}"))
