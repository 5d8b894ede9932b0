"""
What one gate run leaves behind: the value behind ``gate.json`` and every report.

Each part is a frozen dataclass of plain values (numbers, text, enums, tuples, mappings, dataclasses of these), so that
one encoder writes all of it. A part that was not reached, or not asked for, is None and ``omitted`` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sre.gate.bottleneck import Attribution
    from sre.gate.fingerprint import Fingerprint
    from sre.gate.knee import Knee
    from sre.gate.latency_budget import BudgetTable
    from sre.gate.long_tail import LongTail
    from sre.gate.self_checks import Check
    from sre.gate.stages import Calibration, StagePlan, StageSignals
    from sre.gate.summary import StageSummary
    from sre.gate.verdict import GateVerdict


@dataclass(frozen=True, slots=True)
class StageResult:
    """
    One stage of one run.

    Attributes:
        summary: Counts, rates, percentiles per class; in-flight curve; whether saturated, by which sign. None: skipped.
        signals: What gateway, engine and host showed; None: skipped.
        skipped: Why it was not run ("an earlier stage was given up: too many requests fail"); "" if it ran.
        aborted: Why it was given up, a value of ``AbortReason``; "" if it ran to its end.
    """

    plan: StagePlan
    summary: StageSummary | None
    signals: StageSignals | None
    checks: Sequence[Check] = ()
    skipped: str = ""
    aborted: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One pass over the staircase. ``side`` is "candidate", or "A"/"B" when interleaved."""

    number: int
    side: str
    stages: Sequence[StageResult]
    wall_started_at: float


@dataclass(frozen=True, slots=True)
class Smoke:
    """The first requests: does it answer at all, and what is it."""

    ok: bool
    detail: str
    model: str
    max_model_len: int | None
    streaming: bool
    usage_reported: bool
    prompt_sizing: str
    """How prompts are sized: "tokenize" (the server's), "usage" (by two probes), "chars" (neither: 4 per token)."""
    server: str
    """Server and version as it tells (``vllm 0.32.0``, ``unknown``)."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """
    All of it.

    Attributes:
        id: Name of the result folder: UTC time and four random characters, ``20261201T030500Z-k3f9``.
        url: Base URL, without credentials.
        interrupted: Why the run did not reach its end (Ctrl-C, server gone, disk full); "" if it did. Reports of an
            interrupted run are marked partial and never pass.
        omitted: Part → why it is None.
    """

    id: str
    url: str
    model: str
    tool_version: str
    wall_started_at: float
    wall_ended_at: float
    fingerprint: Fingerprint
    smoke: Smoke | None
    calibration: Calibration | None
    runs: Sequence[RunResult]
    knee: Knee | None
    long_tail: LongTail | None
    verdict: GateVerdict
    bottleneck: Attribution | None
    latency_budget: BudgetTable | None
    checks: Sequence[Check] = ()
    interrupted: str = ""
    knee_stages: Sequence[StageResult] = ()
    """The stages of the search for the knee, one per probe beyond the staircase."""
    omitted: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
