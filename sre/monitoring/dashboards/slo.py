"""Objectives: how much of each error budget is left, and how fast it goes."""

from __future__ import annotations

from decimal import Decimal

from sre.metrics.types import Unit
from sre.monitoring.dashboards import parts
from sre.monitoring.dashboards.model import Dashboard, Kind, Limit, Panel, Query, Shown
from sre.monitoring.dashboards.sources import Sources, legend, model_variable, record_variable
from sre.monitoring.levels import SLO
from sre.monitoring.promql import number, one_minus, ratio, scaled
from sre.monitoring.slo import BURN_WINDOWS, BurnWindow

UID = "sre-slo"
BUDGET_LEFT = "slo:period_error_budget_remaining:ratio"
OBJECTIVE = "slo:objective:ratio"
BUDGET = "slo:error_budget:ratio"


def slo(from_: Sources) -> Dashboard:
    """Budgets now, burn rates per pair of windows, and how it came to that."""
    from_ = from_.choosing("slo", "model")
    return Dashboard(
        UID,
        "sre: objectives",
        "Error budgets and burn rates of availability, first token, inter-token and end-to-end latency.",
        rows=(
            parts.row("Now", _now(from_)),
            parts.row("Burn rates", _burn(from_)),
            parts.row("Over time", _over_time(from_)),
        ),
        variables=(record_variable("slo", "Objective", "Service level objective.", OBJECTIVE, SLO), model_variable()),
        annotations=parts.common_annotations(from_, all_on=True),
        since="now-24h",
        refresh="1m",
    )


def _stat(
    from_: Sources, key: str, title: str, shown: Shown, name: str, about: str, bad: str, *limits: Limit
) -> Panel | None:
    if not from_.has(name):
        return None
    return Panel(
        key, title, Kind.STAT, shown, (Query(from_.record(name), legend(name)),), about, bad, height=5, limits=limits,
        bottom=None,
    )  # fmt: skip


def _now(from_: Sources) -> tuple[Panel | None, ...]:
    return (
        _stat(
            from_, "objective", "Objective", Shown.RATIO, OBJECTIVE,
            "Share of events that must be good.", "one that nobody agreed to; it is set in sre.yaml.",
        ),
        _stat(
            from_, "burn-now", "Burn rate now", Shown.FACTOR, "slo:current_burn_rate:ratio",
            "How many times faster than allowed the budget goes.", "above 1 it does not last the period.",
            Limit(1, color="orange"),
        ),
        _stat(
            from_, "budget-left", "Error budget left", Shown.RATIO, BUDGET_LEFT,
            "Share of the period's budget that is not spent; below zero the objective is missed.",
            "little left early in the period: stop taking risks.", Limit(0.1, below=True),
        ) or _spent(from_, "budget-spent-now", Kind.STAT, width=8, height=5),
    )  # fmt: skip


def _spent(from_: Sources, key: str, kind: Kind, *, width: int, height: int) -> Panel | None:
    """What three days took of the period's budget: needs no more than three days of data."""
    name = "slo:errors:ratio_rate3d"
    if not (from_.has(name) and from_.has(BUDGET)):
        return None
    share_of_period = Decimal(3) / from_.settings.slo.period_days
    burned = ratio(from_.record(name), from_.record(BUDGET))
    share = scaled(burned, round(share_of_period, 6), Unit.RATIO)
    return Panel(
        key, "Budget spent in 3 days", kind, Shown.RATIO, (Query(share, legend("slo")),),
        "Share of the whole period's error budget that the last 3 days took, at an even load.",
        f"above {share_of_period:.0%}: at this pace it does not last the period.", width=width,
        height=height, limits=(Limit(float(round(share_of_period, 6))),),
    )  # fmt: skip


def _burn(from_: Sources) -> tuple[Panel | None, ...]:
    return tuple(_burn_panel(from_, row) for row in BURN_WINDOWS)


def _burn_panel(from_: Sources, row: BurnWindow) -> Panel | None:
    names = {window: f"slo:errors:ratio_rate{window}" for window in (row.long, row.short)}
    if not all(map(from_.has, (*names.values(), BUDGET))):
        return None
    factor = row.factor(from_.settings.slo.period_days)
    queries = tuple(
        Query(ratio(from_.record(name), from_.record(BUDGET), Unit.ONE), f"{window} {legend('slo')}")
        for window, name in names.items()
    )
    return Panel(
        f"burn-{row.long}", f"Burn rate over {row.long} and {row.short}", Kind.LINES, Shown.FACTOR, queries,
        "Error ratio by the budget: 1 spends it exactly in the period. The long window says that it matters, the short "
        "one that it goes on.",
        f"both above {number(round(factor, 3))}: a {row.severity.value} after {row.for_}.", width=12,
        limits=(Limit(float(round(factor, 6))),), alerts=from_.alerts_ending(f"Burn{row.long}"),
    )  # fmt: skip


def _over_time(from_: Sources) -> tuple[Panel | None, ...]:
    name = "slo:errors:ratio_rate1h"
    sli = Panel(
        "sli", "Share of good events, per hour", Kind.LINES, Shown.RATIO,
        (Query(one_minus(from_.record(name)), legend(name)),), "What is measured, against the objective.",
        "below the objective.", width=12, top=1.0, bottom=None,
    ) if from_.has(name) else None  # fmt: skip
    budget = parts.lines(
        from_, "budget", "Error budget left", Shown.RATIO, (BUDGET_LEFT,), "The budget over time.", "a steep fall.",
        width=12, bottom=None, limits=(Limit(0.1, below=True),),
    )  # fmt: skip
    return (
        sli,
        budget or _spent(from_, "budget-spent", Kind.LINES, width=12, height=8),
        parts.lines(
            from_, "bad-events", "Bad events per hour", Shown.COUNT, ("slo:errors:increase1h",),
            "Requests (or tokens) that were not good, in the last hour.",
            f"a rise. Below {from_.settings.slo.min_bad_events} in the long window no alert fires: with little traffic "
            "a single one would look like a burn.", width=24,
        ),
    )  # fmt: skip
