"""
A service with several resources, simulated: what the attribution is tried on.

Requests pass one queue after another, each with exponential service times and some servers (cores, channels). Nothing
of the utilization law is in here: how busy a resource was comes from the simulated work, then noise and an idle part
are put on it, as a monitor would show it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from sre.gate.knee import Knee, Probe, conclude, next_probe
from sre.gate.plan import seed_of
from sre.gate.records import Cause, Outcome, RequestRecord
from sre.gate.result import StageResult
from sre.gate.saturation import judge
from sre.gate.stages import (
    ClientCost,
    InFlightSample,
    RequestClass,
    Resource,
    ResourceUse,
    StageKind,
    StageLoad,
    StagePlan,
    StageSignals,
)
from sre.gate.summary import summarize

KIND = (RequestClass("short", 1.0, 64, 4),)


@dataclass(frozen=True, slots=True)
class Station:
    """
    One resource.

    Attributes:
        seconds: Mean service time of a request at it.
        servers: That serve in parallel.
        idle: Share of its capacity that something else takes: it is busy without any request, and slower for them.
        unit, capacity: What its monitor shows, if that is an amount.
    """

    seconds: float
    servers: int = 1
    idle: float = 0.0
    unit: str = ""
    capacity: float | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """
    What is loaded.

    Attributes:
        admitted: Requests inside at a time; the others wait before it, and no resource shows that.
        delay_seconds: Time in the service on no resource.
        noise: Relative standard deviation of what the monitors show.
        hidden: Resources without a monitor.
    """

    stations: Mapping[Resource, Station]
    admitted: int | None = None
    delay_seconds: float = 0.01
    noise: float = 0.04
    hidden: frozenset[Resource] = frozenset()
    occupancy: Mapping[Resource, float] = field(default_factory=dict)

    @property
    def capacity_rps(self) -> float:
        """The lowest ceiling of a resource."""
        return min(one.servers * (1 - one.idle) / one.seconds for one in self.stations.values())


def stage(service: Service, plan: StagePlan, *, lag_seconds: float = 0.0003) -> tuple[StageLoad, StageSignals]:
    """One stage: what the client and the monitors saw."""
    chance = random.Random(f"{plan.seed}/{plan.name}")
    at, sends = 0.0, []
    while (at := at + chance.expovariate(plan.rate_rps)) < plan.duration_seconds:
        sends.append(at)
    line = [
        (at, [0.0] * one.servers, 1 / one.seconds, 1 - one.idle) for at, one in enumerate(service.stations.values())
    ]
    busy = [0.0] * len(line)
    permits = [0.0] * service.admitted if service.admitted else None
    records, ends = [], []
    for number, sent in enumerate(sends):
        moment = sent
        if permits is not None:
            moment = max(moment, heapq.heappop(permits))
        for position, queue, per_second, share in line:
            begin = max(moment, heapq.heappop(queue))
            work = chance.expovariate(per_second)
            moment = begin + work / share
            heapq.heappush(queue, moment)
            # Only what falls into the stage is seen in it.
            if moment <= plan.duration_seconds:
                busy[position] += work
            elif begin < plan.duration_seconds:
                busy[position] += work * (plan.duration_seconds - begin) / (moment - begin)
        moment += service.delay_seconds
        if permits is not None:
            heapq.heappush(permits, moment)
        ends.append(moment)
        records.append(
            RequestRecord(
                number, "short", sent, sent + lag_seconds, first_content_at=moment, last_content_at=moment,
                ended_at=moment, status=200, outcome=Outcome.SUCCESS, cause=Cause.OK, output_tokens=1,
            )
        )  # fmt: skip
    stopped = max(ends, default=0.0)
    load = StageLoad(
        plan, len(sends), 0.0, plan.duration_seconds, max(stopped, plan.duration_seconds), records,
        _in_flight(sends, ends, plan.duration_seconds), ClientCost(0.1, 1, 0.001, 0.0002, lag_seconds, lag_seconds),
    )  # fmt: skip
    uses = []
    for (name, one), spent in zip(service.stations.items(), busy, strict=True):
        if name in service.hidden:
            continue
        share = one.idle + spent / one.servers / plan.duration_seconds
        shown = max(0.0, min(1.0, share * chance.gauss(1, service.noise)))
        amount = None if one.capacity is None else shown * one.capacity
        uses.append(ResourceUse(name, shown, False, f"monitor of {name.value}", amount, one.unit, one.capacity))
    uses += [ResourceUse(name, share, True, "gauge") for name, share in service.occupancy.items()]
    unseen = {name.value: "no monitor" for name in service.hidden}
    return load, StageSignals(plan.duration_seconds, tuple(uses), unseen)


def gate(
    service: Service, *, seed: int, rates: tuple[float, ...], seconds: float = 20.0
) -> tuple[list[StageResult], Knee]:
    """Staircase and search for the knee, as a gate run does it."""
    results: list[StageResult] = []
    history: list[Probe] = []

    def probe(rate: float, kind: StageKind) -> None:
        name = f"{rate:.4g}qps"
        plan = StagePlan(name, kind, rate, seconds, KIND, seed_of(seed, 0, name))
        load, signals = stage(service, plan)
        found = judge(load)
        results.append(StageResult(plan, summarize(load), signals))
        history.append(Probe(rate, found.saturated, found.sign))

    for rate in rates:
        probe(rate, StageKind.STAIRCASE)
    left = 4
    while (between := next_probe(history, resolution_ratio=0.05, probes_left=left)) is not None:
        probe(between, StageKind.KNEE)
        left -= 1
    return results, conclude(history, resolution_ratio=0.05)


def _in_flight(sends: list[float], ends: list[float], seconds: float) -> list[InFlightSample]:
    ordered = sorted(ends)
    samples, begun, ended = [], 0, 0
    for tick in range(int(seconds * 10) + 1):
        at = tick / 10
        while begun < len(sends) and sends[begun] <= at:
            begun += 1
        while ended < len(ordered) and ordered[ended] <= at:
            ended += 1
        samples.append(InFlightSample(at, begun - ended))
    return samples
