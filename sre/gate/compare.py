"""
Comparison with a reference: exact Mann-Whitney over values per run, a least effect, Holm over the gated cells.

Why runs and not requests: requests of one run share its luck, so that a test over thousands of them finds something
every time. Why a PASS needs power: with noisy runs "no significant difference" is what one would see anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from sre.gate.cells import LESS_IS_WORSE, TIMES, CellValues, MeasuredRun, collect, named_cells
from sre.gate.judging import Doubt, JudgePolicy, doubt_of_stage
from sre.gate.percentiles import sample_floor
from sre.gate.report.figures import counted
from sre.gate.same_work import less_work, without_text
from sre.gate.statistics import (
    LARGEST_SIDE,
    critical_u,
    effect_ratio,
    holm,
    mann_whitney_p,
    power,
    runs_needed,
    turned_at,
    variation_ratio,
)
from sre.gate.verdict import Cell, CellVerdict, Reason, Verdict

KIND = "baseline"


@dataclass(frozen=True, slots=True)
class _Sides:
    """Values of one cell on both sides, and what was computed of them."""

    cell: Cell
    ours: CellValues
    theirs: CellValues
    stopped: tuple[Verdict, Reason, str] | None
    """The answer where the values need not be looked at."""
    p_value: float
    effect: float
    variation: float
    """Of the noisier side."""
    typical_variation: float
    """Of both sides together: what the power is computed from."""
    less_work: str = ""
    """Why figures that are no worse prove nothing; "" if nothing does."""
    without_text: str = ""
    """The same, where one side's answers had no text."""


_NO_RUN = (
    Verdict.INCONCLUSIVE, Reason.NOT_MEASURED, "in the reference: there is no run, and so no stage to compare at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beside:
    """A cell of another test than the staircase, and the runs in which both sides have it."""

    cell: Cell
    candidate: Sequence[MeasuredRun]
    reference: Sequence[MeasuredRun]


def judge_cells(
    candidate: Sequence[MeasuredRun],
    reference: Sequence[MeasuredRun],
    policy: JudgePolicy,
    doubt: Doubt | None = None,
    beside: Sequence[Beside] = (),
) -> tuple[CellVerdict, ...]:
    """
    Return one judgement per gated cell.

    Args:
        doubt: In the whole run of either side.
        beside: Judged as the others, and corrected for together with them.
    """
    cells = named_cells(policy.cells, reference, policy.first_class)
    sides = [_sides(cell, candidate, reference, policy, doubt) for cell in cells]
    sides += [_sides(one.cell, one.candidate, one.reference, policy, doubt) for one in beside]
    # Cells that cannot be compared count for Holm, too: leaving them out would make the others easier to fail, and a
    # candidate's trouble in one cell must not change the yardstick of another.
    adjusted = holm([one.p_value for one in sides])
    level = policy.significance / max(1, len(sides))
    return tuple(_verdict(one, p, level, policy) for one, p in zip(sides, adjusted, strict=True))


def _sides(
    cell: Cell,
    candidate: Sequence[MeasuredRun],
    reference: Sequence[MeasuredRun],
    policy: JudgePolicy,
    doubt: Doubt | None,
) -> _Sides:
    ours, theirs = collect(candidate, cell), collect(reference, cell)
    stopped = _stopped(ours, theirs, policy, doubt) if cell.stage else _NO_RUN
    if stopped is None and cell.metric in LESS_IS_WORSE and median(theirs.values) <= 0:
        stopped = Verdict.INCONCLUSIVE, Reason.NOT_MEASURED, "in the reference: nothing was served"
    if stopped is not None:
        p_value = 0.0 if stopped[0] is Verdict.FAIL else 1.0
        return _Sides(cell, ours, theirs, stopped, p_value, math.nan, math.nan, math.nan)
    mine, yours = variation_ratio(ours.values), variation_ratio(theirs.values)
    return _Sides(
        cell,
        ours,
        theirs,
        None,
        _p_value(cell, ours.values, theirs.values),
        effect_ratio(ours.values, theirs.values, higher_is_worse=cell.metric not in LESS_IS_WORSE),
        max(mine, yours),
        math.sqrt((mine * mine + yours * yours) / 2),
        less_work(
            candidate,
            reference,
            cell,
            smallest_ratio=policy.minimum_effect_ratio,
            regression_ratio=policy.regression_ratio,
            may_differ=policy.may_differ,
        ),
        without_text(candidate, cell) or _in_reference(without_text(reference, cell)),
    )


def _in_reference(why: str) -> str:
    return why and f"in the reference: {why}"


def _stopped(
    ours: CellValues, theirs: CellValues, policy: JudgePolicy, doubt: Doubt | None
) -> tuple[Verdict, Reason, str] | None:
    doubt = doubt or doubt_of_stage(*ours.late, ours.failed_checks, policy)
    if doubt is not None:
        return Verdict.INCONCLUSIVE, doubt.reason, doubt.detail
    other = doubt_of_stage(*theirs.late, theirs.failed_checks, policy)
    if other is not None:
        return Verdict.INCONCLUSIVE, other.reason, f"in the reference: {other.detail}"
    if theirs.given_up:
        return Verdict.INCONCLUSIVE, Reason.NOT_MEASURED, f"in the reference: {theirs.given_up}"
    if ours.given_up:
        return Verdict.FAIL, Reason.STAGE_GIVEN_UP, ours.given_up
    for side, who in ((ours, ""), (theirs, "in the reference: ")):
        if not side.values:
            return Verdict.INCONCLUSIVE, side.missing_reason, who + (side.missing or "there is no run")
        if len(side.values) < policy.minimum_runs:
            why = f" ({side.missing})" if side.missing else ""
            return (
                Verdict.INCONCLUSIVE,
                Reason.TOO_FEW_RUNS,
                f"{who}{counted(len(side.values), 'run has', 'runs have')} a value{why}; "
                f"it takes {policy.minimum_runs} on each side (--runs, gate.baseline.runs)",
            )
        if len(side.values) > LARGEST_SIDE:
            return (
                Verdict.INCONCLUSIVE,
                Reason.NOT_MEASURED,
                f"{who}{len(side.values)} runs; the exact test takes at most {LARGEST_SIDE} on a side",
            )
    if ours.missing:
        return Verdict.INCONCLUSIVE, ours.missing_reason, ours.missing
    return None


def _p_value(cell: Cell, ours: Sequence[float], theirs: Sequence[float]) -> float:
    if cell.metric in LESS_IS_WORSE:
        return mann_whitney_p([-value for value in ours], [-value for value in theirs])
    return mann_whitney_p(ours, theirs)


def _verdict(one: _Sides, p_adjusted: float, level: float, policy: JudgePolicy) -> CellVerdict:
    base = CellVerdict(
        one.cell, KIND, Verdict.INCONCLUSIVE, Reason.NOT_MEASURED, tuple(one.ours.values), tuple(one.theirs.values)
    )
    if one.stopped is not None:
        verdict, reason, detail = one.stopped
        return replace(base, verdict=verdict, reason=reason, detail=detail)
    m, n = len(one.ours.values), len(one.theirs.values)
    chance = power(
        m,
        n,
        variation=one.typical_variation,
        regression_ratio=policy.regression_ratio,
        minimum_effect_ratio=policy.minimum_effect_ratio,
        significance=level,
    )
    verdict, reason, detail = _answer(one, p_adjusted, chance, level, policy)
    return replace(
        base,
        verdict=verdict,
        reason=reason,
        p_value=one.p_value,
        p_adjusted=p_adjusted,
        effect_ratio=one.effect,
        variation_ratio=one.variation,
        power_ratio=chance,
        detail=detail,
    )


def _answer(
    one: _Sides, p_adjusted: float, chance: float, level: float, policy: JudgePolicy
) -> tuple[Verdict, Reason, str]:
    m, n = len(one.ours.values), len(one.theirs.values)
    figures = (
        f"median {_shown(one.cell, median(one.ours.values))} against {_shown(one.cell, median(one.theirs.values))} "
        f"({_signed(one.effect)}), p {p_adjusted:.4f} over all cells, runs vary by {_percent(one.variation)}"
    )
    if p_adjusted < policy.significance and one.effect > policy.minimum_effect_ratio:
        return Verdict.FAIL, Reason.REGRESSION, figures
    if critical_u(m, n, level) is None:
        return (
            Verdict.INCONCLUSIVE,
            Reason.TOO_FEW_RUNS,
            f"{figures}; {m} against {n} runs cannot reach p {level:.4f}: more runs (--runs, gate.baseline.runs), or "
            "fewer cells (gate.baseline.cells)",
        )
    quantile = TIMES[one.cell.metric][2] if one.cell.metric in TIMES else None
    fewest = min(one.ours.count, one.theirs.count)
    if quantile is not None and fewest < sample_floor(quantile):
        return (
            Verdict.INCONCLUSIVE,
            Reason.TOO_FEW_SAMPLES,
            f"{figures}; {fewest} requests per run, this percentile takes {sample_floor(quantile)}: "
            "longer stages (--seconds, gate.load.stage_seconds), or a lower percentile (gate.baseline.cells)",
        )
    if chance < policy.power_ratio:
        return Verdict.INCONCLUSIVE, Reason.NOISY, f"{figures}; {_remedy(one, chance, level, policy)}"
    if one.effect >= policy.regression_ratio:
        # The power is that of runs which vary as a bell does. Where one run of five is as before it does not hold.
        return (
            Verdict.INCONCLUSIVE,
            Reason.NOISY,
            f"{figures}; that is as much as a PASS rules out ({policy.regression_ratio:.0%}), and the runs agree "
            "too little to call it a regression: more runs, or fewer cells",
        )
    if one.without_text:
        return Verdict.INCONCLUSIVE, Reason.WITHOUT_TEXT, f"{figures}; {one.without_text}"
    if one.less_work:
        return Verdict.INCONCLUSIVE, Reason.LESS_WORK, f"{figures}; {one.less_work}"
    return Verdict.PASS, Reason.NO_REGRESSION, figures


def _remedy(one: _Sides, chance: float, level: float, policy: JudgePolicy) -> str:
    found = f"a regression of {policy.regression_ratio:.0%} would be found in {chance:.0%} of cases, "
    asked = f"{policy.power_ratio:.0%} are asked for"
    for values, who in ((one.ours.values, ""), (one.theirs.values, "in the reference, ")):
        turned = turned_at(values, policy.regression_ratio)
        if turned is not None:
            return (
                f"{who}{_turned(one.cell, values, turned)}; that is seldom noise, and more runs do not cure it: find "
                f"out what changed, and run again ({found}{asked})"
            )
    needed = runs_needed(
        variation=one.typical_variation,
        regression_ratio=policy.regression_ratio,
        minimum_effect_ratio=policy.minimum_effect_ratio,
        significance=level,
        wanted=policy.power_ratio,
    )
    more = f"about {needed} runs on each side would do" if needed else "no number of runs makes up for that"
    return f"{found}{asked}: {more}; or quieter machines, or longer stages"


def _turned(cell: Cell, values: Sequence[float], index: int) -> str:
    before, after = median(values[:index]), median(values[index:])
    return (
        f"all runs from the {_ordinal(index + 1)} on differ from those before (median {_shown(cell, after)} after "
        f"{_shown(cell, before)}): something changed between them"
    )


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _shown(cell: Cell, value: float) -> str:
    if math.isinf(value):
        return "infinite (failures)"
    if cell.metric.endswith("_ratio"):
        return f"{value:.2%}"
    if cell.metric in LESS_IS_WORSE:
        return f"{value:.1f}/s"
    return f"{value * 1000:.1f} ms"


def _signed(effect: float) -> str:
    if math.isinf(effect):
        return "infinitely worse"
    if effect == 0:
        return "equal"
    return f"{abs(effect):.1%} {'worse' if effect > 0 else 'better'}"


def _percent(ratio: float) -> str:
    return "without bound" if math.isinf(ratio) else f"{ratio:.1%}"
