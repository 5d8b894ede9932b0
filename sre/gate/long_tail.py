"""Shorts alone, then the same shorts with long prompts beside them (requirement E2)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sre.gate.percentiles import nearest_rank, sample_floor, thinned
from sre.gate.plan import SIDE_B
from sre.gate.records import Cause, RequestRecord
from sre.gate.stages import StageLoad, StagePlan
from sre.gate.statistics import effect_ratio, mann_whitney_p


@dataclass(frozen=True, slots=True)
class Arm:
    """
    One scheduling policy, with and without longs. Values per run; infinite where failures make them so.

    Attributes:
        policy: "" for the target itself; SIDE_B for the other side of an interleaved comparison.
        ttft_p99_alone_seconds, ttft_p99_mixed_seconds: Of the shorts.
        samples_alone_seconds, samples_mixed_seconds: Sorted e2e of the shorts, all runs, thinned to 2,000, for the CDF.
        long_prompt_tokens: As the server counted them, mean; None: it told nothing.
        skipped: Why the arm was not run; "" if it was.
        doubt: Why its numbers may not be the server's (the client was late, held requests back); "" if nothing speaks
            against them. Such an arm is shown, and neither best nor worse than another.
        given_up: Stages of it that did not run to their end, and why; they have no value.
    """

    policy: str
    ttft_p99_alone_seconds: Sequence[float]
    ttft_p99_mixed_seconds: Sequence[float]
    e2e_p99_alone_seconds: Sequence[float]
    e2e_p99_mixed_seconds: Sequence[float]
    tpot_p99_alone_seconds: Sequence[float]
    tpot_p99_mixed_seconds: Sequence[float]
    samples_alone_seconds: Sequence[float]
    samples_mixed_seconds: Sequence[float]
    long_prompt_tokens: float | None
    long_requests: int
    long_failed: int
    p_value: float | None
    effect_ratio: float | None
    skipped: str = ""
    doubt: str = ""
    given_up: str = ""


@dataclass(frozen=True, slots=True)
class LongTail:
    """The test. ``best_policy``: the arm whose shorts suffer least, if that is significant; else None."""

    qps: float
    long_share: float
    arms: Sequence[Arm]
    best_policy: str | None
    detail: str


SURELY = 3.0
"""Standard deviations by which chance may make arrivals fewer."""
SIGNIFICANCE = 0.05
LEAST_RUNS = 4
"""Three against three cannot reach p < .05."""
UNSERVED_RATIO = 0.05
"""Of its longs, failed: a policy that turns more of them away spares the shorts by not doing the work. Convention."""


@dataclass(frozen=True, slots=True)
class ShortsOfStage:
    """
    What one stage of the test says about its shorts, and the longs beside them; the records need not be kept.

    Attributes:
        aborted: Why the stage was given up; "" if it ran to its end.
        doubt: Why its numbers may be the client's own; "" if nothing speaks against them.
    """

    ttft_p99_seconds: float | None
    e2e_p99_seconds: float | None
    tpot_p99_seconds: float | None
    e2e_samples_seconds: Sequence[float]
    long_prompt_tokens: Sequence[int]
    long_requests: int
    long_failed: int
    aborted: str = ""
    doubt: str = ""


def shorts_of(load: StageLoad, doubt: str = "") -> ShortsOfStage:
    """Reduce one stage of either half; ``doubt``: why its numbers may be the client's own."""
    names = {kind.name for kind in load.plan.classes}
    offered = [record for record in load.records if record.cause is Cause.OK or record.failed]
    shorts = [record for record in offered if record.request_class in names]
    longs = [record for record in offered if record.request_class not in names]
    e2e = sorted(record.e2e_seconds for record in shorts)
    return ShortsOfStage(
        ttft_p99_seconds=nearest_rank(sorted(record.ttft_seconds for record in shorts), 0.99),
        e2e_p99_seconds=nearest_rank(e2e, 0.99),
        tpot_p99_seconds=nearest_rank(sorted(_tpots(shorts)), 0.99),
        e2e_samples_seconds=thinned(e2e),
        long_prompt_tokens=[record.prompt_tokens for record in longs if record.prompt_tokens is not None],
        long_requests=len(longs),
        long_failed=sum(1 for record in longs if record.failed),
        aborted=load.aborted or "",
        doubt=doubt,
    )


def arm(policy: str, alone: Sequence[ShortsOfStage], mixed: Sequence[ShortsOfStage], skipped: str = "") -> Arm:
    """
    One policy over all its runs. p is one-sided: the shorts' P99 of TTFT is higher beside longs; the effect that of the
    medians.

    A stage that was given up has no value: what was in flight then was cancelled, and those are the slow ones.
    """
    cut = [f"{step}: {stage.aborted}" for step, stages in (("alone", alone), ("with longs", mixed))
           for stage in stages if stage.aborted]  # fmt: skip
    doubt = next((stage.doubt for stage in (*alone, *mixed) if stage.doubt), "")
    alone, mixed = ([stage for stage in stages if not stage.aborted] for stages in (alone, mixed))
    before, after = _known(alone, "ttft_p99_seconds"), _known(mixed, "ttft_p99_seconds")
    tokens = [count for stage in mixed for count in stage.long_prompt_tokens]
    compared = bool(before and after)
    return Arm(
        policy=policy,
        ttft_p99_alone_seconds=before,
        ttft_p99_mixed_seconds=after,
        e2e_p99_alone_seconds=_known(alone, "e2e_p99_seconds"),
        e2e_p99_mixed_seconds=_known(mixed, "e2e_p99_seconds"),
        tpot_p99_alone_seconds=_known(alone, "tpot_p99_seconds"),
        tpot_p99_mixed_seconds=_known(mixed, "tpot_p99_seconds"),
        samples_alone_seconds=thinned(sorted(value for stage in alone for value in stage.e2e_samples_seconds)),
        samples_mixed_seconds=thinned(sorted(value for stage in mixed for value in stage.e2e_samples_seconds)),
        long_prompt_tokens=statistics.fmean(tokens) if tokens else None,
        long_requests=sum(stage.long_requests for stage in mixed),
        long_failed=sum(stage.long_failed for stage in mixed),
        p_value=mann_whitney_p(after, before) if compared else None,
        effect_ratio=effect_ratio(after, before, higher_is_worse=True) if compared else None,
        skipped=skipped,
        doubt=doubt,
        given_up=", ".join(dict.fromkeys(cut)),
    )


def judged_metric(plan: StagePlan) -> str:
    """
    What of the shorts is compared where two servers are: their P99, or where a stage may have too few of them for one
    the P95. By the plan, so that nothing measured chooses its own yardstick.
    """
    planned = plan.rate_rps * plan.classes[0].share * plan.duration_seconds
    enough = planned - SURELY * math.sqrt(planned) >= sample_floor(0.99)
    return "ttft_p99_seconds" if enough else "ttft_p95_seconds"


def conclude(qps: float, long_share: float, arms: Sequence[Arm]) -> LongTail:
    """
    Say which policy spares the shorts most, if that is more than chance: better than every other arm.

    An arm in doubt takes no part, nor does one that lost a stage or failed its longs: it did less work.
    """
    shown = [found for found in arms if not found.skipped and found.ttft_p99_mixed_seconds]
    ran = [found for found in shown if not found.doubt]
    best = min(ran, key=lambda found: statistics.median(found.ttft_p99_mixed_seconds), default=None)
    others = [found for found in ran if found is not best]
    proven = (
        best is not None
        and bool(others)
        and not best.given_up
        and best.long_failed <= UNSERVED_RATIO * best.long_requests
        and all(
            len(best.ttft_p99_mixed_seconds) >= LEAST_RUNS
            and mann_whitney_p(other.ttft_p99_mixed_seconds, best.ttft_p99_mixed_seconds) * len(others) < SIGNIFICANCE
            for other in others
        )
    )
    detail = "; ".join(_sentence(found) for found in arms)
    if len(shown) > len(ran):
        detail += "; arms in doubt are not compared"
    if best is not None and others:
        detail += (
            f"; shorts suffer least under {_named(best)}"
            if proven
            else "; no policy spares the shorts more than another, beyond chance"
        )
    return LongTail(qps, long_share, arms, best.policy if proven and best is not None else None, detail)


def _sentence(found: Arm) -> str:
    if found.skipped:
        return f"{_named(found)}: not run: {found.skipped}"
    if not found.ttft_p99_alone_seconds or not found.ttft_p99_mixed_seconds or found.p_value is None:
        cut = f": given up: {found.given_up}" if found.given_up else ""
        return f"{_named(found)}: nothing to compare{cut}"
    before = statistics.median(found.ttft_p99_alone_seconds)
    after = statistics.median(found.ttft_p99_mixed_seconds)
    failed = f", {found.long_failed} of {found.long_requests} longs failed" if found.long_failed else ""
    cut = f", given up: {found.given_up}" if found.given_up else ""
    doubt = f"; in doubt: {found.doubt}" if found.doubt else ""
    return (
        f"{_named(found)}: P99 of the shorts' TTFT {_seconds(before)} alone, {_seconds(after)} with longs"
        f" (p {found.p_value:.3f}){failed}{cut}{doubt}"
    )


def named(policy: str) -> str:
    """An arm, in a sentence."""
    return {"": "the target", SIDE_B: "side B"}.get(policy, policy)


def arm_title(policy: str) -> str:
    """An arm, over a picture of it: the other side of a comparison is no policy."""
    return f"policy {policy}" if policy not in ("", SIDE_B) else named(policy).removeprefix("the ")


def _named(found: Arm) -> str:
    return named(found.policy).removeprefix("the ")


def _seconds(value: float) -> str:
    return "infinite (failures)" if math.isinf(value) else f"{1000 * value:.0f} ms"


def _known(stages: Sequence[ShortsOfStage], name: str) -> tuple[float, ...]:
    return tuple(value for stage in stages if (value := getattr(stage, name)) is not None)


def _tpots(records: Sequence[RequestRecord]) -> list[float]:
    return [value for record in records if (value := record.tpot_seconds) is not None]
