"""Where a request's time goes, against what it may take (requirement F2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
