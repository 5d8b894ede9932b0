"""What a verdict is judged by, and what takes the ground from under one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sre.gate.report.figures import counted
from sre.gate.self_checks import Check
from sre.gate.stages import Calibration
from sre.gate.verdict import Reason
from sre.settings.gate import GatedCellSettings, GateSettings, ObjectiveSettings


@dataclass(frozen=True, slots=True)
class JudgePolicy:
    """
    What is asked of a run.

    Attributes:
        objectives: Absolute bounds.
        cells: Compared with the baseline.
        first_class: Of the mix; a cell that names no class means it.
        significance: Of the whole comparison, over all cells together.
        minimum_effect_ratio: A smaller difference of the medians is no regression.
        regression_ratio, power_ratio: A PASS is only given where a regression of this size would have been found with
            at least this chance.
        minimum_runs: Each side. Five against five is the least that can show anything over several cells.
        client_lag_p99_seconds: A client later than this is the limit.
        baseline_required: No baseline: ConfigError, instead of judging by the objectives alone.
        may_differ: Conditions of the fingerprint that somebody has declared to make no difference.
    """

    objectives: Sequence[ObjectiveSettings] = ()
    cells: Sequence[GatedCellSettings] = ()
    first_class: str = "short"
    significance: float = 0.05
    minimum_effect_ratio: float = 0.05
    regression_ratio: float = 0.2
    power_ratio: float = 0.8
    minimum_runs: int = 5
    client_lag_p99_seconds: float = 0.02
    baseline_required: bool = False
    may_differ: Sequence[str] = ()

    @classmethod
    def of(cls, settings: GateSettings) -> JudgePolicy:
        """From section ``gate`` of sre.yaml."""
        baseline = settings.baseline
        return cls(
            objectives=settings.objectives,
            cells=baseline.cells,
            first_class=settings.load.mix[0].name,
            significance=baseline.significance,
            minimum_effect_ratio=baseline.minimum_effect_ratio,
            regression_ratio=baseline.regression_ratio,
            power_ratio=baseline.power_ratio,
            client_lag_p99_seconds=settings.client_lag_p99_seconds,
            baseline_required=baseline.required,
            may_differ=baseline.may_differ,
        )


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason to believe neither good nor bad news of a stage."""

    reason: Reason
    detail: str


def doubt_of_run(calibration: Calibration | None, checks: Sequence[Check]) -> Doubt | None:
    """What makes every figure of the run doubtful; None: nothing does."""
    if calibration is not None and calibration.client_limited:
        return Doubt(
            Reason.CLIENT_LIMITED,
            f"this machine cannot send {calibration.rate_rps:g} requests per second on time: {calibration.reason}",
        )
    broken = next((check for check in checks if check.ok is False), None)
    if broken is not None:
        return Doubt(Reason.SELF_CHECK_FAILED, f"our own figures contradict each other: {broken.name}: {broken.detail}")
    return None


def doubt_of_stage(
    lag_p99_seconds: float, shed: int, failed_checks: Sequence[str], policy: JudgePolicy
) -> Doubt | None:
    """What makes the figures of one stage doubtful; None: nothing does."""
    if shed > 0:
        return Doubt(
            Reason.CLIENT_LIMITED,
            f"{counted(shed, 'request was', 'requests were')} never sent: the client's limit of requests in "
            "flight was reached; raise gate.load.max_in_flight (where open files are too few: ulimit -n), or lower the "
            "rate",
        )
    if lag_p99_seconds > policy.client_lag_p99_seconds:
        return Doubt(
            Reason.CLIENT_LIMITED,
            f"the client was {lag_p99_seconds * 1000:.0f} ms late (P99 of its worst run; "
            f"limit {policy.client_lag_p99_seconds * 1000:.0f} ms): what it saw is its own slowness; use a "
            "machine with more free cores, or lower rates",
        )
    if failed_checks:
        return Doubt(Reason.SELF_CHECK_FAILED, f"our own figures contradict each other: {failed_checks[0]}")
    return None
