"""
Service level objectives: error ratios over the windows of multi-window burn-rate alerts, and the state of the budget.

Burn rate: how many times faster than allowed the error budget is spent. A row of ``BURN_WINDOWS`` fires when both its
windows burn faster than ``budget_share × period / long``; the short one, a twelfth, makes it stop soon after the fault
ends. Source: Google SRE Workbook, chapter 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from sre.metrics import vllm
from sre.metrics.catalogue import variants
from sre.metrics.types import Metric, Unit
from sre.monitoring.gateway_requests import gateway_requests
from sre.monitoring.http_errors import engine_http
from sre.monitoring.levels import MODEL_NAME, SLO
from sre.monitoring.model import Record, Severity
from sre.monitoring.promql import (
    Expr,
    Selection,
    at_least,
    both,
    compare,
    either,
    largest_by,
    minus,
    number,
    one_minus,
    over_time,
    present_by,
    ratio,
    scaled,
    seconds,
    sum_by,
)
from sre.settings.monitoring import LatencySloSettings, MonitoringSettings

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """
    One row of the table.

    Attributes:
        budget_share: Part of the period's budget that is gone when it fires.
        long, short: Both must burn too fast.
        for_: And keep doing so.
    """

    severity: Severity
    budget_share: Decimal
    long: str
    short: str
    for_: str

    def factor(self, period_days: int) -> Decimal:
        """Burn rate at which it fires."""
        return self.budget_share * period_days * SECONDS_PER_DAY / Decimal(int(seconds(self.long)))


BURN_WINDOWS: tuple[BurnWindow, ...] = (
    BurnWindow(Severity.PAGE, Decimal("0.02"), "1h", "5m", "2m"),
    BurnWindow(Severity.PAGE, Decimal("0.05"), "6h", "30m", "15m"),
    BurnWindow(Severity.TICKET, Decimal("0.1"), "1d", "2h", "1h"),
    BurnWindow(Severity.TICKET, Decimal("0.1"), "3d", "6h", "3h"),
)
RATIO_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
SHORT_GROUP = RATIO_WINDOWS[:4]
LEAST_FACTOR = Decimal("0.9")
"""Slower than that the budget lasts to the end of the period: nothing to wake or bother anybody for."""


@dataclass(frozen=True, slots=True)
class Slo:
    """
    One objective.

    Attributes:
        name: Value of the label ``slo``.
        alert: Its part of the alerts' names.
        setting: Where in sre.yaml it stands.
        objective: Share of events that must be good.
        bad_words: What a bad event is, for sentences: "requests failed".
        bad, total: Events by model_name; called with "rate" or "increase" and a window.
    """

    name: str
    alert: str
    setting: str
    objective: Decimal
    bad_words: str
    bad: Callable[[str, str], Expr]
    total: Callable[[str, str], Expr]

    @property
    def budget(self) -> Decimal:
        """Share of events that may be bad."""
        return 1 - self.objective

    @property
    def matcher(self) -> str:
        """Selects its records."""
        return f'{SLO}="{self.name}"'


def objectives(selection: Selection, settings: MonitoringSettings) -> list[Slo]:
    """The objectives that are switched on, and that the chosen releases can be held against."""
    chosen = settings.slo
    found = []
    if chosen.availability_enabled:
        found.append(
            Slo(
                "availability",
                "Availability",
                "monitoring.slo.availability_objective",
                _decimal(chosen.availability_objective),
                "requests failed",
                lambda function, window: _availability(selection, window, function)[0],
                lambda function, window: _availability(selection, window, function)[1],
            )
        )
    for name, alert, setting, latency, metric, words in (
        ("ttft", "Ttft", "ttft", chosen.ttft, vllm.TIME_TO_FIRST_TOKEN, "requests waited longer than {} for a token"),
        ("itl", "Itl", "inter_token", chosen.inter_token, vllm.INTER_TOKEN_LATENCY, "tokens came later than {}"),
        ("e2e", "E2e", "e2e", chosen.e2e, vllm.E2E_REQUEST_LATENCY, "requests took longer than {}"),
    ):
        if latency.enabled and variants(metric, selection.versions.get(metric.exporter)):
            found.append(_latency_slo(selection, name, alert, f"monitoring.slo.{setting}", latency, metric, words))
    return found


def _latency_slo(
    selection: Selection,
    name: str,
    alert: str,
    setting: str,
    latency: LatencySloSettings,
    metric: Metric,
    words: str,
) -> Slo:
    names = variants(metric, selection.versions.get(metric.exporter))

    def total(function: str, window: str) -> Expr:
        taken = selection.rate if function == "rate" else selection.increase
        # "or" inside the sum, series by series: between sums it would leave out the replicas with the older name.
        return sum_by(either(*(taken(one, window, part="count") for one in names)), MODEL_NAME)

    def bad(function: str, window: str) -> Expr:
        below = (selection.below_edge(one, latency.threshold_seconds, window, function=function) for one in names)
        fast = sum_by(either(*below), MODEL_NAME)
        # Both are extrapolated: what is nothing may come out a hair below.
        return at_least(minus(total(function, window), fast), 0)

    shown = f"{number(latency.threshold_seconds)} s"
    return Slo(name, alert, setting, _decimal(latency.objective), words.format(shown), bad, total)


def _availability(selection: Selection, window: str, function: str) -> tuple[Expr, Expr]:
    """
    Failed and judged requests by model.

    As the gateway saw them where it carried any of the model in the window, else as vLLM's HTTP side did, or as the
    engine gave up on them, if that is more: a stream that broke off has the status 200. A gateway that only knows the
    model says nothing of requests that go past it.
    """
    taken = selection.rate if function == "rate" else selection.increase
    gateway = gateway_requests(selection, window, function, MODEL_NAME)
    http = engine_http(selection, window, function)
    given_up = sum_by(taken(vllm.REQUEST_SUCCESS, window, finished_reason="error"), MODEL_NAME)
    carried = compare(gateway.judged, ">", 0)
    return (
        either(
            both(gateway.bad, carried),
            largest_by(sum_by(http.errors, MODEL_NAME), given_up, MODEL_NAME),
            # Nobody had traffic: nothing failed, and the objective is still known.
            gateway.bad,
        ),
        either(carried, sum_by(http.served, MODEL_NAME), gateway.judged),
    )


def _decimal(value: float) -> Decimal:
    return Decimal(str(value))


# ---- Records --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SloRecords:
    """
    Records of one objective, in the groups they are evaluated in: dear ones less often.

    Attributes:
        short, long: Bad events, events and their ratio over the windows up to 2h, and from 6h.
        budget: Objective, budget and how fast it is spent.
    """

    slo: Slo
    short: tuple[Record, ...]
    long: tuple[Record, ...]
    budget: tuple[Record, ...]


def records(selection: Selection, settings: MonitoringSettings) -> list[Record]:
    """All records of all objectives; ``slo_records`` says in which groups."""
    parts = slo_records(selection, settings)
    return [record for part in parts for record in (*part.short, *part.long, *part.budget)]


def slo_records(selection: Selection, settings: MonitoringSettings) -> list[SloRecords]:
    """Records by objective."""
    found = []
    for slo in objectives(selection, settings):
        windows = {window: _window_records(slo, window) for window in RATIO_WINDOWS}
        short = tuple(record for window in SHORT_GROUP for record in windows[window])
        long = tuple(record for window in RATIO_WINDOWS if window not in SHORT_GROUP for record in windows[window])
        found.append(SloRecords(slo, short, long, tuple(_budget_records(slo, settings))))
    return found


def _window_records(slo: Slo, window: str) -> tuple[Record, Record, Record]:
    labels = {SLO: slo.name}
    errors = Record(f"slo:errors:increase{window}", slo.bad("increase", window), f"Bad events in {window}.", labels)
    events = Record(f"slo:events:increase{window}", slo.total("increase", window), f"Events in {window}.", labels)
    of_slo = slo.matcher
    share = ratio(errors(of_slo), events(of_slo))
    return errors, events, Record(f"slo:errors:ratio_rate{window}", share, f"Share of bad events in {window}.", labels)


def _budget_records(slo: Slo, settings: MonitoringSettings) -> Iterable[Record]:
    def record(name: str, expr: Expr, text: str) -> Record:
        return Record(name, expr, text, {SLO: slo.name})

    known = present_by(of_objective(slo, "slo:events:increase1h", Unit.REQUESTS), MODEL_NAME)
    yield record("slo:objective:ratio", scaled(known, slo.objective, Unit.RATIO), "Share of events that must be good.")
    yield record("slo:error_budget:ratio", scaled(known, slo.budget, Unit.RATIO), "Share of events that may be bad.")
    current = of_objective(slo, "slo:errors:ratio_rate5m", Unit.RATIO)
    yield record(
        "slo:current_burn_rate:ratio",
        scaled(current, slo.budget, Unit.ONE, divide=True),
        "How many times faster than allowed the budget is spent now.",
    )
    period = settings.slo.period_days
    if period > settings.retention_days:
        return
    bad, events = (
        over_time("sum_over_time", of_objective(slo, name, Unit.REQUESTS), f"{period}d")
        for name in ("slo:errors:increase1h", "slo:events:increase1h")
    )
    # Both sums count every event as often as there are samples an hour, so the ratio is that of the events.
    burned = Record(
        "slo:period_burn_rate:ratio",
        scaled(ratio(bad, events), slo.budget, Unit.ONE, divide=True),
        f"Budget spent over {period} days, as a multiple of the whole.",
        {SLO: slo.name},
    )
    yield burned
    yield record(
        "slo:period_error_budget_remaining:ratio",
        replace(one_minus(burned(slo.matcher)), unit=Unit.RATIO),
        "Budget left of the period; negative when overspent.",
    )


def of_objective(slo: Slo, name: str, unit: Unit) -> Expr:
    """A record of this objective."""
    return Expr(f"{name}{{{slo.matcher}}}", unit, frozenset({SLO, MODEL_NAME}), frozenset({name}))


# ---- Which rows ------------------------------------------------------------------------------------------------------


def burn_windows(slo: Slo, settings: MonitoringSettings) -> list[tuple[BurnWindow, Decimal]]:
    """The rows that can fire, and mean something, with the share of bad events above which they do."""
    return [
        (row, factor * slo.budget)
        for row in BURN_WINDOWS
        if (factor := row.factor(settings.slo.period_days)) >= LEAST_FACTOR and factor * slo.budget < 1
    ]


def notes(selection: Selection, settings: MonitoringSettings) -> list[str]:
    """What is left out of the objectives, and why: one sentence each, with the setting."""
    found = []
    period = settings.slo.period_days
    slos = objectives(selection, settings)
    for row in BURN_WINDOWS:
        factor = row.factor(period)
        if factor < LEAST_FACTOR and slos:
            found.append(
                f"monitoring.slo.period_days: no burn alerts over {row.long}: burning {_short(factor)} times as fast as"
                f" allowed is within the budget of {period} days; choose a longer period to have them"
            )
            continue
        for slo in slos:
            if factor * slo.budget >= 1:
                found.append(
                    f"{slo.setting}: no burn alert over {row.long} for {slo.name}: {_short(factor)} times the budget of"
                    f" {number(slo.budget)} is more than everything, so it could never fire; raise the objective to"
                    f" have it"
                )
    if slos and period > settings.retention_days:
        found.append(
            f"monitoring.retention_days: {number(settings.retention_days)} is shorter than slo.period_days ({period}):"
            " the records slo:period_burn_rate:ratio and slo:period_error_budget_remaining:ratio are left out; keep"
            f" Prometheus' data for {period} days and say so here to have them"
        )
    return found


def _short(value: Decimal) -> str:
    return number(round(value, 3))
