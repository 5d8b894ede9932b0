"""
PASS, FAIL or INCONCLUSIVE.

In this order: is it comparable at all, was the client the limit, do the objectives hold, is it worse than the other.
Any FAIL fails. Else anything that could not be told makes the whole inconclusive. A PASS needs a cell that passed, and
an end of the run that nobody cut short: more errors, or slower answers, never turn a FAIL into a PASS.

A client that was the limit makes everything inconclusive, good news and bad: what it saw is its own slowness. One
exception: errors that the server itself said, above an objective's share of failures.
"""

from __future__ import annotations

from collections.abc import Sequence

from sre.gate.baseline import Baseline, none_there
from sre.gate.cells import MeasuredRun, measure, named_cells
from sre.gate.compare import Beside, judge_cells
from sre.gate.fingerprint import Fingerprint, require_equal
from sre.gate.judging import Doubt, JudgePolicy, doubt_of_run
from sre.gate.objectives import judge_objectives
from sre.gate.result import RunResult
from sre.gate.same_work import copied, other_pieces, unknown_length
from sre.gate.self_checks import Check
from sre.gate.stages import Calibration
from sre.gate.verdict import CellVerdict, GateVerdict, Reason, Verdict

__all__ = ["JudgePolicy", "compare", "judge", "reference_of"]

ONE_DAY = "the baseline is of one day: add runs of others, or days look like regressions"
MAY_BE_THE_DAY = (
    "the baseline is of one day only, and a difference of this size may be the day's: compare in turns (sre gate run "
    "--against), or add runs of other days (sre gate baseline accept --add)"
)
LARGEST_OF_A_DAY = 0.2
"""Days that vary by 5 % differ by so much about once in 200 pairs: a larger difference is hardly theirs."""

Reference = Baseline | Sequence[RunResult]
"""A stored baseline, or the other side of an interleaved comparison."""


def judge(
    runs: Sequence[RunResult],
    baseline: Reference | None,
    policy: JudgePolicy,
    *,
    calibration: Calibration | None = None,
    checks: Sequence[Check] = (),
    interrupted: str = "",
    fingerprint: Fingerprint | None = None,
    unseen: str = "",
    remark: str = "",
    beside: Sequence[Beside] = (),
) -> GateVerdict:
    """
    Return the verdict on ``runs``, all of one side.

    Args:
        baseline: What to compare with; None: by the objectives alone, and the verdict says so.
        checks: Self-checks of the whole run; those of stages are in the runs.
        interrupted: Why it was cut short; "" if it was not.
        fingerprint: Of these runs; compared with the baseline's. None: not known (the caller vouches).
        unseen: What was asked for beside objectives and cells and could not be measured: no PASS then; "" if nothing.
        remark: What nobody could look at in such records, said beside every verdict on them; "" if nothing.
        beside: Cells of another test than the staircase, compared with the reference, too.

    Raises:
        ConfigError: the baseline is of another environment (one sentence per difference), or required and missing.
    """
    if baseline is None and policy.baseline_required:
        raise none_there("gate")
    if isinstance(baseline, Baseline) and fingerprint is not None:
        require_equal(baseline.fingerprint, fingerprint, f"baseline {baseline.name}", policy.may_differ)
    doubt = doubt_of_run(calibration, checks)
    measured = [measure(run) for run in runs]
    found = judge_objectives(runs, measured, policy, doubt)
    reference = reference_of(baseline)
    remarks: tuple[str, ...] = ()
    if reference is not None:
        found += judge_cells(measured, reference, policy, doubt, beside)
        remarks = _remarks(measured, reference, policy)
    return _whole(
        found,
        doubt,
        interrupted,
        _name(baseline),
        compared=reference is not None,
        days=baseline.days if isinstance(baseline, Baseline) else (),
        unseen=unseen,
        remark=remark,
        remarks=remarks,
    )


def compare(
    reference: Reference,
    candidate: Reference,
    policy: JudgePolicy,
    *,
    fingerprints: tuple[Fingerprint, Fingerprint] | None = None,
    calibrations: Sequence[Calibration | None] = (),
    checks: Sequence[Check] = (),
    interrupted: str = "",
) -> GateVerdict:
    """
    Return whether ``candidate`` is worse than ``reference``, by the cells alone.

    Args:
        fingerprints: Of reference and candidate, where they are not baselines; None: not known.
        calibrations: Of both, where known: where the client was the limit of either, nothing can be told.
        checks: Self-checks of both runs as a whole.
        interrupted: Why either was cut short; "" if neither was. Such a comparison does not pass.

    Raises:
        ConfigError: they are of different environments; one sentence per difference.
    """
    theirs = fingerprints[0] if fingerprints else reference.fingerprint if isinstance(reference, Baseline) else None
    ours = fingerprints[1] if fingerprints else candidate.fingerprint if isinstance(candidate, Baseline) else None
    if theirs is not None and ours is not None:
        require_equal(theirs, ours, _name(reference), policy.may_differ)
    doubt = next((found for one in (*calibrations, None) if (found := doubt_of_run(one, checks)) is not None), None)
    yours, mine = _measured(reference), _measured(candidate)
    cells = judge_cells(mine, yours, policy, doubt)
    days = reference.days if isinstance(reference, Baseline) else ()
    return _whole(
        cells, doubt, interrupted, _name(reference), compared=True, days=days, remarks=_remarks(mine, yours, policy)
    )


def _remarks(
    candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun], policy: JudgePolicy
) -> tuple[str, ...]:  # fmt: skip
    cells = named_cells(policy.cells, reference, policy.first_class)
    return (
        *other_pieces(candidate, reference, cells),
        *copied(candidate, reference),
        *unknown_length(candidate, reference, cells, policy.may_differ),
    )


def reference_of(baseline: Reference | None) -> Sequence[MeasuredRun] | None:
    """The runs of the other side; None: there is no other side."""
    return None if baseline is None else _measured(baseline)


def _measured(side: Reference) -> Sequence[MeasuredRun]:
    return side.runs if isinstance(side, Baseline) else [measure(run) for run in side]


def _name(side: Reference | None) -> str:
    if side is None:
        return ""
    return side.name if isinstance(side, Baseline) else "reference"


def _whole(
    cells: Sequence[CellVerdict],
    doubt: Doubt | None,
    interrupted: str,
    baseline_name: str,
    *,
    compared: bool,
    days: Sequence[str],
    unseen: str = "",
    remark: str = "",
    remarks: Sequence[str] = (),
) -> GateVerdict:
    gated = [cell for cell in cells if cell.gated]
    failed = [cell for cell in gated if cell.verdict is Verdict.FAIL]
    open_ = [cell for cell in gated if cell.verdict is Verdict.INCONCLUSIVE]
    passed = [cell for cell in gated if cell.verdict is Verdict.PASS]
    beside = [] if compared else [Reason.NO_BASELINE]
    added = "" if compared else "; no baseline: judged by the objectives alone"
    if len(days) == 1:
        added += f"; {MAY_BE_THE_DAY if _of_a_day(failed) else ONE_DAY}"
    if remark:
        added += f"; {remark}"

    def whole(verdict: Verdict, reasons: Sequence[Reason], summary: str) -> GateVerdict:
        unique = tuple(dict.fromkeys((*reasons, *beside)))
        return GateVerdict(verdict, unique, tuple(cells), summary + added, baseline_name, tuple(remarks))

    if failed:
        cut = f" (cut short: {interrupted})" if interrupted else ""
        more = _more(failed)
        reasons = [cell.reason for cell in failed] + ([Reason.INTERRUPTED] if interrupted else [])
        return whole(Verdict.FAIL, reasons, f"{failed[0].cell}: {failed[0].detail}{more}{cut}")
    if interrupted:
        reasons = [Reason.INTERRUPTED, *(cell.reason for cell in open_)]
        return whole(Verdict.INCONCLUSIVE, reasons, f"cut short: {interrupted}")
    if doubt is not None:
        return whole(Verdict.INCONCLUSIVE, [doubt.reason], doubt.detail)
    if open_:
        more = _more(open_)
        return whole(Verdict.INCONCLUSIVE, [cell.reason for cell in open_], f"{open_[0].cell}: {open_[0].detail}{more}")
    if not passed:
        return whole(
            Verdict.INCONCLUSIVE,
            [Reason.NOT_MEASURED] if compared else [],
            "nothing was judged: neither an objective nor a baseline applies; set gate.objectives, or accept one",
        )
    if unseen:
        return whole(Verdict.INCONCLUSIVE, [Reason.NOT_MEASURED], unseen)
    return whole(Verdict.PASS, [cell.reason for cell in passed], f"{len(passed)} of {len(gated)} cells hold")


def _of_a_day(failed: Sequence[CellVerdict]) -> bool:
    """The regressions are no larger than days have made them look."""
    effects = [cell.effect_ratio or 0.0 for cell in failed if cell.reason is Reason.REGRESSION]
    return bool(effects) and max(effects) <= LARGEST_OF_A_DAY


def _more(cells: Sequence[CellVerdict]) -> str:
    """`` (and 2 more figures)``; "" if the first is the only one. In brackets: what precedes it is a whole sentence."""
    others = len(cells) - 1
    return f" (and {others} more {'figure' if others == 1 else 'figures'})" if others > 0 else ""
