"""
What a candidate is compared with: runs that somebody accepted, as a versioned document.

Runs of one day share its luck, and against a baseline of one day the next day's candidate looks different: 12 to 20 %
false alarms in simulation, however many runs. So runs of further days may be added, and each carries its day.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sre.errors import ConfigError, Refused, StateError
from sre.gate.cells import MeasuredClass, MeasuredRun, measure, same_measurement
from sre.gate.fingerprint import Fingerprint, require_equal
from sre.gate.percentiles import thinned
from sre.gate.report import codec
from sre.gate.report.figures import counted
from sre.gate.result import GateResult
from sre.gate.statistics import LARGEST_SIDE
from sre.gate.summary import ALL
from sre.gate.verdict import Reason, Verdict
from sre.printable import one_line

SCHEMA = "sre/gate-baseline"
MAJOR, MINOR = 1, 1

IMPORTED = "imported: "
"""Begins what stands for the URL of an import."""
LEAST_RUNS = 5
SAMPLE = 200
"""Values kept per time, class, stage and run: enough for a curve, and small enough to be committed."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """
    One time that runs were taken in.

    Attributes:
        run_id: Of the gate run.
        accepted_at: Seconds since the Unix epoch.
        runs: How many it brought.
        note: Why, in a person's words.
        forced: It had fewer runs than a comparison takes, and was accepted all the same.
        subject: What was tested: versions.
        wall_started_at: When the gate run began, seconds since the Unix epoch; 0: by a version that did not keep it.
    """

    run_id: str
    accepted_at: float
    runs: int
    note: str = ""
    forced: bool = False
    subject: Sequence[tuple[str, str]] = ()
    wall_started_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """
    Accepted runs of one environment.

    Attributes:
        name: Of the file.
        fingerprint: Equal for all of them, and for every candidate.
        runs: At most 100.
        acceptances: In order.
    """

    name: str
    model: str
    tool_version: str
    fingerprint: Fingerprint
    runs: Sequence[MeasuredRun]
    acceptances: Sequence[Acceptance]

    @property
    def days(self) -> tuple[str, ...]:
        """UTC dates of its runs, in order."""
        return tuple(sorted({run.day for run in self.runs}))


def accept(
    result: GateResult, *, name: str, accepted_at: float, note: str = "", existing: Baseline | None = None,
    force: bool = False, may_differ: Sequence[str] = (), client_lag_p99_seconds: float = 0.02,
) -> Baseline:  # fmt: skip
    """
    Return the baseline that ``result`` makes, or makes of ``existing`` with its runs added.

    Args:
        force: Take fewer runs than LEAST_RUNS. A failing, interrupted or client-limited run is never taken.
        may_differ: Conditions in which its runs need not equal those of ``existing``.
        client_lag_p99_seconds: A client later than this was the limit.

    Raises:
        Refused: the run does not qualify; the sentence says why.
        ConfigError: ``existing`` is of another environment; one sentence per difference.
    """
    where = f"gate run {result.id}"
    if problem := _obstacle(result, client_lag_p99_seconds):
        raise Refused(f"{where}: not accepted as baseline: {problem}")
    fresh = from_result(result, name=name, accepted_at=accepted_at, note=note)
    if result.url.startswith(IMPORTED):  # a run of our own is known by its id
        _require_distinct((*(existing.runs if existing is not None else ()), *fresh.runs), where)
    if existing is not None:
        return add(existing, fresh, may_differ)
    if len(fresh.runs) < LEAST_RUNS:
        if not force:
            raise Refused(
                f"{where}: not accepted as baseline: it has {counted(len(fresh.runs), 'run')}, "
                f"a comparison takes {LEAST_RUNS}; make them with --runs {LEAST_RUNS} (gate.baseline.runs), or accept "
                "it with --force and add runs later (--add)"
            )
        return replace(fresh, acceptances=tuple(replace(one, forced=True) for one in fresh.acceptances))
    return fresh


def add(existing: Baseline, fresh: Baseline, may_differ: Sequence[str] = ()) -> Baseline:
    """
    Return ``existing`` with the runs of ``fresh`` behind its own.

    Raises:
        Refused: they are in it already, or it would hold more than the exact test takes.
        ConfigError: other environment.
    """
    where = f"baseline {existing.name}"
    require_equal(existing.fingerprint, fresh.fingerprint, where, may_differ)
    known = {one.run_id for one in existing.acceptances}
    for one in fresh.acceptances:
        if one.run_id in known:
            raise Refused(f"{where}: gate run {one.run_id} is in it already")
    total = len(existing.runs) + len(fresh.runs)
    if total > LARGEST_SIDE:
        raise Refused(f"{where}: would hold {total} runs, more than {LARGEST_SIDE}; accept a new one in its place")
    return replace(
        existing,
        runs=(*existing.runs, *fresh.runs),
        acceptances=(*existing.acceptances, *fresh.acceptances),
        tool_version=fresh.tool_version,
    )


def _require_distinct(runs: Sequence[MeasuredRun], where: str) -> None:
    """Refuse copies: an import of one file twice is two gate runs, and copies look like runs that hardly vary."""
    for place, run in enumerate(runs):
        first = next((one for one in runs[:place] if same_measurement(one, run)), None)
        if first is not None:
            raise Refused(
                f"{where}: run {run.number + 1} of {run.run_id} has the times of run {first.number + 1} of "
                f"{first.run_id}, request by request: one measurement is one run"
            )


def from_result(result: GateResult, *, name: str, accepted_at: float = 0.0, note: str = "") -> Baseline:
    """Return the runs of ``result`` as a baseline, accepted or not. Of an interleaved run: those of side A."""
    sides = {run.side for run in result.runs}
    chosen = [run for run in result.runs if run.side == "A" or "A" not in sides]
    runs = tuple(_slim(measure(run, run_id=result.id, day=day_of(run.wall_started_at))) for run in chosen)
    taken = Acceptance(
        result.id, accepted_at, len(runs), one_line(note), subject=result.fingerprint.subject,
        wall_started_at=result.wall_started_at,
    )  # fmt: skip
    return Baseline(name, result.model, result.tool_version, result.fingerprint, runs, (taken,))


def _obstacle(result: GateResult, client_lag_p99_seconds: float) -> str:
    """Why these runs must not be what later ones are measured by; "": nothing speaks against it."""
    if result.interrupted:
        return f"it was interrupted ({result.interrupted})"
    if result.verdict.verdict is Verdict.FAIL:
        hint = "; where that is meant, run it under another gate.baseline.name" if _only_slower(result) else ""
        return f"it failed ({result.verdict.summary}){hint}"
    if result.calibration is not None and result.calibration.client_limited:
        return f"the client was the limit ({result.calibration.reason}): its figures are not the server's"
    if not result.runs:
        return "it holds no run"
    for run in result.runs:
        for stage in run.stages:
            if (seen := stage.summary) is None:
                continue
            where = f"stage {stage.plan.name} of run {run.number + 1}"
            if seen.shed:
                return f"{where}: the client held back {seen.shed} requests"
            if seen.client_late_seconds > client_lag_p99_seconds:
                return f"{where}: the client was {1000 * seen.client_late_seconds:.0f} ms late (P99): its own slowness"
    for why in result.verdict.reasons:
        if why in (Reason.CLIENT_LIMITED, Reason.SELF_CHECK_FAILED):
            return f"its figures are in doubt ({result.verdict.summary})"
    return ""


def _only_slower(result: GateResult) -> bool:
    return set(result.verdict.reasons) == {Reason.REGRESSION}


def day_of(wall_seconds: float) -> str:
    """UTC date, ``2026-12-01``; "" where there is none of such a time."""
    try:
        return datetime.fromtimestamp(wall_seconds, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return ""


def _slim(run: MeasuredRun) -> MeasuredRun:
    """Samples thinned and rounded to a microsecond; of one class and ``all`` that are the same, the one."""
    return replace(
        run,
        stages=tuple(
            replace(
                stage,
                classes={
                    name: _slim_class(kind, keep=name != ALL or len(stage.classes) != 2)
                    for name, kind in stage.classes.items()
                },
            )
            for stage in run.stages
        ),
    )


def _slim_class(kind: MeasuredClass, *, keep: bool) -> MeasuredClass:
    def few(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(round(value, 6) for value in thinned(values, SAMPLE)) if keep else ()

    return replace(
        kind, ttft_sample_seconds=few(kind.ttft_sample_seconds), e2e_sample_seconds=few(kind.e2e_sample_seconds)
    )


def to_document(baseline: Baseline) -> dict[str, Any]:
    """What JSON has."""
    return {"schema": SCHEMA, "schema_version": f"{MAJOR}.{MINOR}", **codec.encode(baseline)}


def dumps(baseline: Baseline) -> str:
    """The file's text: a line per value would be unreadable in a diff, one line for all as well; so a line per run."""
    document = to_document(baseline)
    runs = document.pop("runs")
    head = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    lines = ",\n".join("  " + json.dumps(run, allow_nan=False, separators=(",", ":")) for run in runs)
    return f'{head[:-2]},\n "runs": [\n{lines}\n ]\n}}\n'


def from_document(document: Any, where: str) -> Baseline:
    """
    Return the baseline that ``document`` holds.

    Args:
        where: Name of the file, for the message.

    Raises:
        StateError: another document, a newer major version, damaged; or one that no candidate can be compared with.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise StateError(f"{where}: is no baseline of the gate; accept one with: sre gate baseline accept RUN")
    version = str(document.get("schema_version"))
    if version.partition(".")[0] != str(MAJOR):
        raise StateError(
            f"{where}: schema_version {one_line(version)[:20]} is not {MAJOR}.x; use the sre that wrote it"
        )
    try:
        baseline = codec.decode(Baseline, document)
    except codec.Unreadable as problem:
        raise StateError(f"{where}: {one_line(str(problem))}; restore the file, or accept a new baseline") from None
    if not baseline.runs:
        raise StateError(f"{where}: holds no run; accept a new baseline")
    seen = Counter((run.run_id, run.number) for run in baseline.runs)
    (run_id, number), times = seen.most_common(1)[0]
    if times > 1:  # a merge may do that: there is a line per run. Copies would look like runs that hardly vary
        raise StateError(
            f"{where}: run {number + 1} of {one_line(run_id)} is in it {times} times; restore the file, or accept "
            "a new baseline"
        )
    return baseline


def loads(text: str, where: str) -> Baseline:
    """Read a file's text. Raises StateError, see ``from_document``."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        problem = "is not JSON: damaged, or cut off; restore the file, or accept a new baseline"
        raise StateError(f"{where}: {problem}") from None
    return from_document(document, where)


def none_there(where: str, option: str = "") -> ConfigError:
    """The error to raise where there is no baseline and ``option``, or else the settings, require one."""
    required = f"{option} was given" if option else "gate.baseline.required is true"
    return ConfigError(
        [f"{where}: there is no baseline, and {required}; accept one with: sre gate baseline accept RUN"]
    )
