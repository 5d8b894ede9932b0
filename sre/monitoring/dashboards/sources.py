"""Where panels get their expressions: records by name, raw metrics for drilling down, cut to the chosen variables."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sre.metrics.catalogue import variants
from sre.metrics.types import Metric, Unit
from sre.monitoring.catalogue_rules import all_alerts, all_records, selection
from sre.monitoring.dashboards.model import Variable
from sre.monitoring.levels import DEVICE, FINISHED_REASON, GPU, INSTANCE, JOB, MODEL_NAME, NODE, POOL, SLO, XID
from sre.monitoring.model import Record
from sre.monitoring.promql import RANGE_SCRAPES, Expr, ExpressionError, Selection, count_by, either, number
from sre.settings.monitoring import MonitoringSettings

RATE_INTERVAL = "$__rate_interval"
"""Grafana puts a range here that fits the width of a pixel and holds four scrapes."""
_STAND_IN = "1w"
"""A range that every scrape interval accepts, until ``RATE_INTERVAL`` takes its place."""

_CHOSEN_BY: Mapping[str, str] = {NODE: "node", MODEL_NAME: "model", POOL: "model", SLO: "slo"}
"""Label → variable. A pool is named as the model it serves."""
_BY_INSTANCE = frozenset({"engine", "engine_reason"})
"""Levels whose instance is an engine. That of a host or GPU is an exporter, which nobody picks: see node."""

LEGENDS: Mapping[str, str] = {
    "gpu": f"{{{{{NODE}}}}} GPU {{{{{GPU}}}}}",
    "gpu_xid": f"{{{{{NODE}}}}} GPU {{{{{GPU}}}}} XID {{{{{XID}}}}}",
    "node": f"{{{{{NODE}}}}}",
    "instance": f"{{{{{NODE}}}}}",
    "instance_device": f"{{{{{NODE}}}}} {{{{{DEVICE}}}}}",
    "engine": f"{{{{{INSTANCE}}}}} {{{{{MODEL_NAME}}}}}",
    "engine_reason": f"{{{{{INSTANCE}}}}} {{{{{FINISHED_REASON}}}}}",
    "model": f"{{{{{MODEL_NAME}}}}}",
    "pool": f"{{{{{POOL}}}}}",
    "slo": f"{{{{{SLO}}}}} {{{{{MODEL_NAME}}}}}",
}
"""Level → name of a series in a panel."""


def legend(record: str) -> str:
    """Name of a record's series, by its level."""
    return LEGENDS[record.split(":")[0]]


def labels(*names: str) -> str:
    """A legend of labels: ``{{engine}} {{reason}}``."""
    return " ".join(f"{{{{{name}}}}}" for name in names)


def matcher(label: str, variable: str) -> str:
    """``label=~"$variable"``: the chosen values; with All, series without the label, too."""
    return f'{label}=~"${variable}"'


@dataclass(frozen=True, slots=True)
class Sources:
    """
    Expressions for panels.

    Attributes:
        records: What is recorded with these settings.
        known: Every name that some settings record: what is not among them is a slip.
        alerts: What can fire with these settings.
        raw: Selects raw metrics, whatever their job: the variable ``job`` chooses.
        chosen: Variables of the dashboard.
    """

    records: Mapping[str, Record]
    known: frozenset[str]
    alerts: frozenset[str]
    raw: Selection
    settings: MonitoringSettings
    chosen: frozenset[str] = frozenset()

    def choosing(self, *variables: str) -> Sources:
        """The same for a dashboard with these variables."""
        return replace(self, chosen=frozenset(variables))

    def has(self, name: str) -> bool:
        """
        Whether the settings (releases, objectives, retention) record it.

        Raises:
            ExpressionError: No settings do; with the nearest names.
        """
        if name in self.records:
            return True
        if name not in self.known:
            near = difflib.get_close_matches(name, self.known, n=3, cutoff=0.5)
            raise ExpressionError(f"no record {name}" + (f"; near: {', '.join(near)}" if near else ""))
        return False

    def record(self, name: str, *matchers: str) -> Expr:
        """
        A recorded series, cut to the chosen node, model, pool, SLO and (engines only) instance.

        Raises:
            ExpressionError: There is no such record with these settings.
        """
        if not self.has(name):
            raise ExpressionError(f"{name} is not recorded with these settings; ask has() first")
        record = self.records[name]
        chosen = {label: by for label, by in _CHOSEN_BY.items() if label in record().labels and by in self.chosen}
        if name.split(":")[0] in _BY_INSTANCE and "instance" in self.chosen:
            chosen[INSTANCE] = "instance"
        return record(*matchers, *(matcher(label, variable) for label, variable in chosen.items()))

    def joined(
        self, metric: Metric, take: Callable[[Metric], Expr], then: Callable[[Expr], Expr] | None = None
    ) -> Expr | None:
        """
        The series of a raw metric under every name it has in the chosen release; None where it has none.

        Args:
            take: Series of one name, not aggregated: ``or`` between sums would hide those with the older name.
            then: Aggregates them all.
        """
        names = variants(metric, self.raw.versions.get(metric.exporter))
        if not names:
            return None
        every = either(*(take(name) for name in names))
        return every if then is None else then(every)

    def rate(self, metric: Metric, *matchers: str, part: str = "") -> Expr:
        """Per-second rate of a raw metric, over what a pixel of the panel covers."""
        expr = self.raw.rate(metric, _STAND_IN, *matchers, part=part)
        return replace(expr, text=expr.text.replace(f"[{_STAND_IN}]", f"[{RATE_INTERVAL}]"))

    def grown(self, metric: Metric, *matchers: str, window: str = RATE_INTERVAL) -> Expr:
        """
        Growth of a counter over the window, its birth included.

        ``increase`` does not see a counter appear with the value 1, as those that count rare events do.
        """
        increase = self.raw.increase(metric, _STAND_IN, *matchers)
        value = self.raw.raw(metric, *matchers).text
        grown = increase.text.replace(f"[{_STAND_IN}]", f"[{window}]")
        return replace(increase, text=f"({value} unless {value} offset {window}) or {grown}", atomic=False)

    @property
    def event_window(self) -> str:
        """The shortest window in which a counter's growth is seen for sure."""
        return f"{number(RANGE_SCRAPES * self.settings.scrape_interval_seconds)}s"

    def alerts_ending(self, end: str) -> tuple[str, ...]:
        """Alerts whose names end so, sorted."""
        return tuple(sorted(alert for alert in self.alerts if alert.endswith(end)))


def age(timestamp: Expr) -> Expr:
    """Seconds since a time stamp."""
    return replace(timestamp, text=f"time() - {timestamp.operand}", unit=Unit.SECONDS, atomic=False)


def sources(settings: MonitoringSettings) -> Sources:
    """Sources for these settings. Raises ExpressionError, ValueError: the settings give no rules."""
    everything = MonitoringSettings(retention_days=3650)
    return Sources(
        {record.name: record for record in all_records(settings)},
        frozenset(record.name for record in all_records(everything)),
        frozenset(alert.name for alert in all_alerts(settings)),
        replace(selection(settings), jobs={}),
        settings,
    )


# ---- Variables ------------------------------------------------------------------------------------------------------

RUNNING = "engine:vllm_requests_running:sum"
"""What every engine has, whatever its load."""


def job_variable() -> Variable:
    """Scrape jobs."""
    about = "Scrape job, of targets and raw metrics."
    return Variable("job", "Job", about, f"label_values(up, {JOB})", frozenset({"up"}))


def instance_variable() -> Variable:
    """Targets of the chosen jobs."""
    query = f"label_values(up{{{matcher(JOB, 'job')}}}, {INSTANCE})"
    return Variable("instance", "Instance", "Engine or other target.", query, frozenset({"up"}))


def record_variable(name: str, label: str, about: str, record: str, of: str) -> Variable:
    """Values of a label of a record."""
    return Variable(name, label, about, f"label_values({record}, {of})", frozenset({record}))


def model_variable() -> Variable:
    """Models that engines serve."""
    return record_variable("model", "Model", "Served model.", RUNNING, MODEL_NAME)


def node_variable(from_: Sources, *records: str) -> Variable:
    """Machines that any of the records knows: no exporter need run everywhere."""
    known = either(*(count_by(from_.records[name](), NODE) for name in records))
    query = f"query_result({known.text})"
    return Variable("node", "Node", "Machine.", query, known.uses, regex=f'/{NODE}="([^"]+)"/')


def metric_variable(name: str, label: str, about: str, metric: Metric, of: str) -> Variable:
    """Values of a label of a metric."""
    return Variable(name, label, about, f"label_values({metric.sample}, {of})", frozenset({metric.sample}))
