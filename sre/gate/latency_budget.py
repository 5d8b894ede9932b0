"""
Where a request's time goes, against what it may take (requirement F2).

Means, since only they add up: the client's mean from the intended send to the end of the answer is the whole; client
lag, network, queue and compute are its parts, from the client's own stamps, a trivial request, and the engine's
histograms over the stage. What no part explains is the residual; serialization is in there, and is judged by it.

The engine's figures are of all requests together, never by prompt length: what longs do to shorts is seen by the
client's stamps alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sre.gate.result import StageResult
from sre.gate.self_checks import Check
from sre.gate.stages import StageKind, StageSignals
from sre.gate.summary import ALL, StageSummary
from sre.settings.gate import BudgetSettings

ROUND_TRIP = "round_trip_seconds"
"""In ``StageSignals.host``: time to first byte of a trivial request, before and after the stage, the lower one."""
NOTABLE_GROWTH = 0.1
"""Of the whole, from the first stage."""
MOST_OF_THE_GROWTH = 0.6
TOO_MUCH = -0.1
"""Residual below which the parts contradict the whole."""


@dataclass(frozen=True, slots=True)
class BudgetPart:
    """One part of the latency of a stage. ``measured_seconds`` None: could not be seen, and ``source`` says why."""

    name: str
    budget_seconds: float | None
    measured_seconds: float | None
    within: bool | None
    source: str


@dataclass(frozen=True, slots=True)
class BudgetStage:
    """One stage: parts, their sum against the client's mean latency, and what is left unexplained."""

    stage: str
    parts: Sequence[BudgetPart]
    total_seconds: float
    residual_seconds: float
    residual_ratio: float
    hint: str
    """What the growth from the first stage says: queue up alone = capacity; prefill up = head of line; …"""


@dataclass(frozen=True, slots=True)
class BudgetTable:
    """One per stage that ran."""

    stages: Sequence[BudgetStage]


def budget_table(stages: Iterable[StageResult], budget: BudgetSettings) -> BudgetTable:
    """
    The budget of every stage that was measured and answered something.

    Args:
        stages: In the order they ran; hints compare with the first of them. Several runs of a stage are rows of their
            own.
    """
    rows: list[BudgetStage] = []
    first: tuple[StageResult, Mapping[str, float]] | None = None
    for stage in stages:
        if stage.summary is None:
            continue
        total = mean_latency(stage.summary)
        if total is None:
            continue
        signals = stage.signals or StageSignals(0.0, unseen={"engine": "nothing was read around this stage"})
        parts = _parts(stage.summary, signals, total)
        if first is None:
            first = stage, parts
        hint = _hint(stage, parts, *first)
        rows.append(_row(stage, signals, parts, budget, hint))
    return BudgetTable(tuple(rows))


def mean_latency(summary: StageSummary) -> float | None:
    """Mean time of the successful answers, intended send to end, in seconds; None: there were none."""
    samples = summary.e2e_sample_seconds
    if ALL in samples:
        whole = [value for value in samples[ALL] if math.isfinite(value)]
        return math.fsum(whole) / len(whole) if whole else None
    weighted = count = 0.0
    for name, values in samples.items():
        finite = [value for value in values if math.isfinite(value)]
        kind = summary.classes.get(name)
        if finite and kind is not None:
            weighted += kind.ok * math.fsum(finite) / len(finite)
            count += kind.ok
    return weighted / count if count else None


def physical_bounds(
    *,
    tpot_p50_seconds: float | None,
    output_tokens_per_second: float | None,
    gpus: int,
    parameters: float | None,
    weight_bytes: float | None,
    memory_bytes_per_second: float | None,
    flops_per_second: float | None,
) -> Check:
    """
    Whether the figures are possible at all: a token needs every active weight once, and two operations per parameter.

    Args:
        parameters, weight_bytes: Active per token; of a mixture of experts not the whole.
        memory_bytes_per_second, flops_per_second: Peak per GPU; the model is split over ``gpus``.
    """
    told, broken = [], []
    if weight_bytes and memory_bytes_per_second and tpot_p50_seconds is not None:
        least = weight_bytes / (memory_bytes_per_second * gpus)
        told.append(f"time per token {tpot_p50_seconds * 1000:.3g} ms, physically at least {least * 1000:.3g} ms")
        if tpot_p50_seconds < least:
            broken.append(told[-1])
    if parameters and flops_per_second and output_tokens_per_second is not None:
        most = flops_per_second * gpus / (2 * parameters)
        told.append(f"{output_tokens_per_second:.4g} tokens/s, physically at most {most:.4g}")
        if output_tokens_per_second > most:
            broken.append(told[-1])
    if not told:
        return Check("physical_bounds", None, "size of the model or peak of the GPU is not known")
    return Check("physical_bounds", not broken, "; ".join(broken or told))


def _parts(summary: StageSummary, signals: StageSignals, total: float) -> Mapping[str, float]:
    """What could be seen, in seconds, and the ``residual``."""
    found = {"total": total, "client": summary.lag_p50_seconds}
    if ROUND_TRIP in signals.host:
        found["network"] = signals.host[ROUND_TRIP]
    for name in ("queue", "prefill", "decode"):
        value = signals.engine.get(f"{name}_seconds_mean")
        if value is not None and math.isfinite(value):
            found[name] = value
    explained = math.fsum(value for name, value in found.items() if name != "total")
    return {**found, "residual": total - explained}


def _row(
    stage: StageResult, signals: StageSignals, parts: Mapping[str, float], budget: BudgetSettings, hint: str
) -> BudgetStage:
    def part(name: str, allowed: float | None, value: float | None, source: str, signal: str) -> BudgetPart:
        if value is None:
            why = signals.unseen.get(signal) or signals.unseen.get("engine") or "not seen"
            return BudgetPart(name, allowed, None, None, why)
        return BudgetPart(name, allowed, value, None if allowed is None else value <= allowed, source)

    prefill, decode = parts.get("prefill"), parts.get("decode")
    compute = None if prefill is None or decode is None else prefill + decode
    split = "" if prefill is None or decode is None else f"prefill {_ms(prefill)} + decode {_ms(decode)}, of the engine"
    seen_all = "network" in parts and "queue" in parts and compute is not None
    rest = "the whole less the other parts" if seen_all else "holds what was not seen"
    residual = parts["residual"]
    rows = (
        part("client", None, parts["client"], "intended to sent, median", "client"),
        part("network", budget.network_seconds, parts.get("network"), "a trivial request's first byte", "round_trip"),
        part("load", budget.load_seconds, parts.get("queue"), "queue time of the engine, mean", "engine"),
        part("compute", budget.compute_seconds, compute, split, "engine"),
        BudgetPart(
            "serialization", budget.serialization_seconds, residual,
            residual <= budget.serialization_seconds if seen_all else None, rest,
        ),
    )  # fmt: skip
    total = parts["total"]
    return BudgetStage(stage.plan.name, rows, total, residual, residual / total if total > 0 else 0.0, hint)


def _hint(stage: StageResult, parts: Mapping[str, float], first: StageResult, before: Mapping[str, float]) -> str:
    if parts["residual"] < TOO_MUCH * parts["total"]:
        return "the parts exceed the whole: the engine also serves someone else, or its figures hold other requests"
    if stage is first:
        return ""
    if (stage.plan.name, stage.plan.kind) == (
        first.plan.name,
        first.plan.kind,
    ):  # another run of it: what differs is how runs vary, and not its growth
        return "as the first stage"
    growth = parts["total"] - before["total"]
    if growth < NOTABLE_GROWTH * before["total"]:
        return "as the first stage"
    shares = {
        name: (parts[name] - before[name]) / growth
        for name in ("client", "network", "queue", "prefill", "decode", "residual")
        if name in parts and name in before
    }
    name, share = max(shares.items(), key=lambda one: one[1])
    said = f"{min(share, 1.0):.0%} of the growth is {name}"  # more than all of it where another part became less
    if stage.plan.kind is StageKind.MIXED and (_shorts_wait(stage, first) or name in ("prefill", "queue")):
        return f"{said}: shorts wait behind long prompts (head of line)"
    if name == "queue":
        return f"{said}: capacity" if share >= MOST_OF_THE_GROWTH else f"{said}: capacity, among others"
    meaning = {
        "client": "the client itself is late",
        "network": "the way to the server, or its front end",
        "prefill": "prompts wait for each other (head of line)",
        "decode": "the batch grew, or memory bandwidth is short",
        "residual": "outside the engine: front end, gateway, serialization"
        if "queue" in parts
        else "the engine shows nothing, so it is not known where",
    }
    return f"{said}: {meaning[name]}"


def _shorts_wait(stage: StageResult, first: StageResult) -> bool:
    """By the client's stamps: first tokens of the same class come later, the time per token has not grown as much."""
    if stage.summary is None or first.summary is None:
        return False
    for name, now in stage.summary.classes.items():
        before = first.summary.classes.get(name)
        if name == ALL or before is None or now.ttft.p50 is None or not before.ttft.p50:
            continue
        token = (now.tpot.p50 or 0.0) / before.tpot.p50 if before.tpot.p50 else 1.0
        if now.ttft.p50 / before.ttft.p50 > 1.2 * max(1.0, token):
            return True
    return False


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
