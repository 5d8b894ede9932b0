"""PASS, FAIL or INCONCLUSIVE, each with named reasons."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Verdict(enum.Enum):
    """The answer."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Reason(enum.Enum):
    """Why; one name for log, report, JSON and test."""

    WITHIN_OBJECTIVES = "within_objectives"
    NO_REGRESSION = "no_regression"
    OBJECTIVE_MISSED = "objective_missed"
    REGRESSION = "regression"
    STAGE_GIVEN_UP = "stage_given_up"
    CLIENT_LIMITED = "client_limited"
    TOO_FEW_SAMPLES = "too_few_samples"
    TOO_FEW_RUNS = "too_few_runs"
    NOISY = "noisy"  # the runs vary so much that a regression of the size to be found would be missed
    LESS_WORK = "less_work"  # no slower, but its prompts or answers were shorter than the baseline's, or prompts cached
    WITHOUT_TEXT = "without_text"  # most answers had tokens and no text: no first token was seen
    NO_BASELINE = "no_baseline"
    NOT_MEASURED = "not_measured"  # the cell's stage was skipped
    SELF_CHECK_FAILED = "self_check_failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Cell:
    """Stage x class x metric: the unit that is judged."""

    stage: str
    request_class: str
    metric: str

    def __str__(self) -> str:
        return f"{self.stage}/{self.request_class}/{self.metric}"


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """
    One judgement.

    Attributes:
        kind: "objective" or "baseline".
        candidate, baseline: Value per run; infinite where failures make it so. Baseline empty for an objective.
        bound: Of an objective.
        p_value: Exact Mann-Whitney, one-sided, before Holm. ``p_adjusted``: after.
        effect_ratio: Median of the candidate over that of the baseline, minus 1; positive is worse for every metric.
        variation_ratio: Coefficient of variation of the noisier side's runs.
        power_ratio: Chance to have seen the least regression to be found, with this noise; None: not compared.
        gated: Counts for the whole verdict.
        detail: A sentence for people, with the numbers.
    """

    cell: Cell
    kind: str
    verdict: Verdict
    reason: Reason
    candidate: Sequence[float]
    baseline: Sequence[float] = ()
    bound: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    effect_ratio: float | None = None
    variation_ratio: float | None = None
    power_ratio: float | None = None
    gated: bool = True
    detail: str = ""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The whole: any FAIL fails; else any INCONCLUSIVE; else PASS, and PASS needs one gated cell that passed."""

    verdict: Verdict
    reasons: Sequence[Reason]
    cells: Sequence[CellVerdict]
    summary: str
    """One sentence: what decided."""
    baseline_name: str = ""
    remarks: Sequence[str] = ()
    """Sentences on what was compared that decided nothing, and should be known."""
