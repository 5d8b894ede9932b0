"""What a live Prometheus has of everything that we generate; what is empty, by name."""

from __future__ import annotations

from sre.monitoring.catalogue_rules import all_alerts, all_records
from sre.monitoring.model import Record
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.live.operands import names, operands
from tests.support.prometheus import Prometheus


def selector(record: Record) -> str:
    """The series of one recording rule: objectives share a name."""
    matchers = ",".join(f'{label}="{value}"' for label, value in record.labels.items())
    return record.name + ("{" + matchers + "}" if matchers else "")


def missing_samples(prometheus: Prometheus, settings: MonitoringSettings) -> set[str]:
    """Raw samples that rules read and that no target exposes."""
    records = all_records(settings)
    recorded = {record.name for record in records}
    used = {name for rule in (*records, *all_alerts(settings)) for name in names(rule.expr.text)}
    return used - recorded - prometheus.names()


def empty_records(prometheus: Prometheus, settings: MonitoringSettings) -> set[str]:
    """Recording rules without a series, as selectors."""
    return {name for name in map(selector, all_records(settings)) if not prometheus.query(name)}


def empty_operands(prometheus: Prometheus, settings: MonitoringSettings) -> dict[str, set[str]]:
    """Alert → those of its operands that have no series."""
    known: dict[str, bool] = {}

    def empty(operand: str) -> bool:
        if operand not in known:
            known[operand] = not prometheus.query(operand)
        return known[operand]

    found = {alert.name: set(filter(empty, operands(alert.expr.text))) for alert in all_alerts(settings)}
    return {alert: missing for alert, missing in found.items() if missing}


def metadata(prometheus: Prometheus) -> dict[str, str]:
    """Type of each metric family, as Prometheus got it."""
    data = prometheus.get("/api/v1/metadata").json()["data"]
    return {family: entries[0]["type"] for family, entries in data.items()}
