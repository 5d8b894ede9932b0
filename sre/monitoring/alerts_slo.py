"""Multi-window burn-rate alerts, one per objective and row of the table that can fire."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from sre.metrics import own, vllm
from sre.metrics.catalogue import variants
from sre.metrics.types import Exporter, Metric, Unit
from sre.monitoring.levels import MODEL_NAME, SLO
from sre.monitoring.model import Alert, Dimension, Input, Rising, Scenario
from sre.monitoring.promql import Selection, both, compare, number, seconds
from sre.monitoring.series import series
from sre.monitoring.slo import BurnWindow, Slo, burn_windows, objectives, of_objective
from sre.settings.monitoring import MonitoringSettings

DASHBOARD = "sre-slo"
_STEP = {"1h": "1m", "6h": "5m", "1d": "10m", "3d": "30m"}
"""Step of a row's cases: coarse, so that days take promtool no time; the short window still has five samples."""
_WORDS = {"1h": "an hour", "6h": "6 hours", "1d": "a day", "3d": "3 days"}


def alerts(selection: Selection, settings: MonitoringSettings) -> list[Alert]:
    """Burn-rate alerts of every objective. Pages first within an objective."""
    return [
        _alert(slo, row, threshold, selection, settings)
        for slo in objectives(selection, settings)
        for row, threshold in burn_windows(slo, settings)
    ]


def _alert(slo: Slo, row: BurnWindow, threshold: Decimal, selection: Selection, settings: MonitoringSettings) -> Alert:
    least = settings.slo.min_bad_events
    long = compare(of_objective(slo, f"slo:errors:ratio_rate{row.long}", Unit.RATIO), ">", threshold)
    short = compare(of_objective(slo, f"slo:errors:ratio_rate{row.short}", Unit.RATIO), ">", threshold)
    enough = compare(of_objective(slo, f"slo:errors:increase{row.long}", Unit.REQUESTS), ">=", least)
    factor = number(round(row.factor(settings.slo.period_days), 3))
    days = settings.slo.period_days
    return Alert(
        name=f"Slo{slo.alert}Burn{row.long}",
        expr=both(both(long, short), enough),
        for_=row.for_,
        severity=row.severity,
        dimension=Dimension.SLO,
        component="engine",
        summary=f"{{{{ $labels.model_name }}}} spends its {slo.name} error budget more than {factor} times too fast",
        description=(
            f"{{{{ $value | humanizePercentage }}}} of {{{{ $labels.model_name }}}}'s {slo.bad_words} over"
            f" {_WORDS[row.long]}; {_percent(slo.budget)} may, over {days} days."
            f" {_percent(row.budget_share)} of that budget went in {_WORDS[row.long]} or less, and it goes on."
        ),
        dashboard=DASHBOARD,
        scenario=_scenario(slo, row, selection, settings),
        labels={SLO: slo.name},
    )


def _percent(share: Decimal) -> str:
    return f"{number(share * 100)} %"


def _scenario(slo: Slo, row: BurnWindow, selection: Selection, settings: MonitoringSettings) -> Scenario:
    """Everything is bad, then nothing."""
    step = _STEP[row.long]
    # A power of two: sums and differences stay exact.
    events = float(2 ** max(6, settings.slo.min_bad_events.bit_length()))
    return Scenario(
        inputs=tuple(_INPUTS[slo.name](selection, settings, events)),
        fires_after=f"{int(seconds(row.for_) + 3 * seconds(step))}s",
        resolves_after=f"{int(seconds(row.short) + 3 * seconds(step))}s",
        labels={MODEL_NAME: "m"},
        value="100%",
        interval=step,
    )


def _gateway(selection: Selection, settings: MonitoringSettings, events: float) -> list[Input]:
    def ended(outcome: str) -> str:
        return series(selection, own.REQUESTS, engine="e", pool="m", outcome=outcome)

    return [
        Input(ended("failure"), firing=Rising(events), quiet=Rising(0)),
        Input(ended("success"), firing=Rising(0), quiet=Rising(events)),
    ]


def _histogram(
    metric: Metric, threshold: Callable[[MonitoringSettings], float]
) -> Callable[[Selection, MonitoringSettings, float], list[Input]]:
    def inputs(selection: Selection, settings: MonitoringSettings, events: float) -> list[Input]:
        name = variants(metric, selection.versions.get(Exporter.VLLM))[0]
        edge = number(threshold(settings))
        below = series(
            selection, name, "bucket", instance="n:8000", model_name="m", le=edge if "." in edge else f"{edge}.0"
        )
        count = series(selection, name, "count", instance="n:8000", model_name="m")
        return [
            Input(count, firing=Rising(events), quiet=Rising(events)),
            Input(below, firing=Rising(0), quiet=Rising(events)),
        ]

    return inputs


_INPUTS: dict[str, Callable[[Selection, MonitoringSettings, float], list[Input]]] = {
    "availability": _gateway,
    "ttft": _histogram(vllm.TIME_TO_FIRST_TOKEN, lambda settings: settings.slo.ttft.threshold_seconds),
    "itl": _histogram(vllm.INTER_TOKEN_LATENCY, lambda settings: settings.slo.inter_token.threshold_seconds),
    "e2e": _histogram(vllm.E2E_REQUEST_LATENCY, lambda settings: settings.slo.e2e.threshold_seconds),
}
