"""Panels and annotations that several dashboards show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sre.metrics import own
from sre.metrics.prometheus import ALERTNAME, ALERTS, UP
from sre.metrics.types import Metric, Unit
from sre.monitoring.dashboards.model import Annotation, Kind, Limit, Panel, Query, Row, Shown, State
from sre.monitoring.dashboards.sources import Sources, labels, legend
from sre.monitoring.levels import INSTANCE, JOB
from sre.monitoring.promql import Expr, compare, max_by, plus, quoted, scaled, sum_by

SEVERITY, DIMENSION, COMPONENT = "severity", "dimension", "component"

BREAKER_STATES = (
    State(0, "closed", "green"),
    State(1, "half open", "yellow"),
    State(2, "open", "red"),
    State(3, "forced open", "dark-red"),
    State(4, "disabled", "purple"),
)
_BREAKER_CODES = {"half_open": 1, "open": 2, "forced_open": 3, "disabled": 4}


def row(title: str, panels: Iterable[Panel | None], *, collapsed: bool = False) -> Row:
    """A row of the panels that there are: what the chosen releases do not expose is left out."""
    return Row(title, tuple(panel for panel in panels if panel is not None), collapsed)


def coded(
    from_: Sources, metric: Metric, codes: Mapping[str, int], label: str, by: tuple[str, ...], *matchers: str
) -> Expr:
    """One number per state from gauges that are 1 on the state that holds: 0 where none of ``codes`` does."""
    total: Expr | None = None
    for state, code in codes.items():
        value = max_by(from_.raw.gauge(metric, f'{label}="{state}"', *matchers), *by)
        term = value if code == 1 else scaled(value, code, Unit.STATE)
        total = term if total is None else plus(total, term)
    assert total is not None, "codes are never empty"
    return total


def breaker_code(from_: Sources, *matchers: str) -> Expr:
    """State of each breaker, as a number of ``BREAKER_STATES``."""
    return coded(from_, own.BREAKER_STATE, _BREAKER_CODES, own.STATE, (own.SCOPE, own.TARGET), *matchers)


def lines(
    from_: Sources,
    key: str,
    title: str,
    shown: Shown,
    names: tuple[str, ...],
    about: str,
    bad: str,
    *,
    legends: tuple[str, ...] = (),
    empty: str = "no traffic",
    width: int = 8,
    height: int = 8,
    bottom: float | None = 0.0,
    top: float | None = None,
    limits: tuple[Limit, ...] = (),
    alerts: tuple[str, ...] = (),
    stacked: bool = False,
) -> Panel | None:
    """
    Recorded series over time; None where the settings record none of them.

    Args:
        legends: One per name, put before the series' own name: ``read``, ``write``.
    """
    heads = legends or ("",) * len(names)
    queries = tuple(
        Query(from_.record(name), f"{head} {legend(name)}".strip())
        for name, head in zip(names, heads, strict=True)
        if from_.has(name)
    )
    if not queries:
        return None
    return Panel(
        key, title, Kind.LINES, shown, queries, about, bad, empty=empty, width=width, height=height, bottom=bottom,
        top=top, limits=limits, alerts=alerts, stacked=stacked,
    )  # fmt: skip


def targets(
    from_: Sources, key: str, title: str, jobs: tuple[str, ...], about: str, alerts: tuple[str, ...], *matchers: str
) -> Panel:
    """Whether the targets of these jobs answer."""
    one_of = f"={quoted(jobs[0])}" if len(set(jobs)) == 1 else f"=~{quoted('|'.join(map(re.escape, jobs)))}"
    up = from_.raw.gauge(UP, f"{JOB}{one_of}", *matchers)
    return Panel(
        key, title, Kind.STATES, Shown.STATE, (Query(up, labels(JOB, INSTANCE)),), about,
        "down: what it measures is unseen, and for an engine, users are.", empty="no target", width=24, height=5,
        states=(State(0, "down", "red"), State(1, "up", "green")), alerts=alerts,
    )  # fmt: skip


def firing(from_: Sources) -> Expr:
    """Alerts of ours that fire now. They carry a dimension; other people's do not."""
    raw = from_.raw.gauge(ALERTS, 'alertstate="firing"', f'{DIMENSION}!=""')
    return Expr(raw.text, raw.unit, raw.labels | {SEVERITY, DIMENSION, COMPONENT}, raw.uses)


def firing_table(from_: Sources, *, width: int = 8, height: int = 7) -> Panel:
    """What fires, as a table."""
    by = (ALERTNAME, SEVERITY, DIMENSION, COMPONENT)
    return Panel(
        "alerts-firing", "Alerts firing", Kind.TABLE, Shown.COUNT, (Query(sum_by(firing(from_), *by), ""),),
        "Alerts of these rules that fire now, whatever the choices above.",
        "anything of severity page. What to do stands in its runbook.",
        empty="none", width=width, height=height, columns=by,
    )  # fmt: skip


def common_annotations(from_: Sources, *, all_on: bool = False) -> tuple[Annotation, ...]:
    """Alerts, open breakers and injected faults, as stretches of time."""
    alerts = sum_by(firing(from_), ALERTNAME, SEVERITY)
    opened = compare(
        max_by(from_.raw.gauge(own.BREAKER_STATE, f'{own.STATE}=~"open|forced_open"'), own.SCOPE, own.TARGET), ">", 0
    )
    faults = compare(max_by(from_.raw.gauge(own.FAULTS_ACTIVE), own.FAULT), ">", 0)
    return (
        Annotation(
            "Alerts", alerts, labels(ALERTNAME), f"severity {labels(SEVERITY)}", "orange", (ALERTNAME, SEVERITY),
            enabled=all_on,
        ),
        Annotation(
            "Breaker open", opened, f"{labels(own.SCOPE, own.TARGET)} open", "New requests are refused.", "red",
            (own.TARGET,),
        ),
        Annotation(
            "Injected faults", faults, f"fault {labels(own.FAULT)}", "Injected on purpose (sre chaos).", "purple",
            (own.FAULT,),
        ),
    )  # fmt: skip
