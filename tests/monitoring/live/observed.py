"""What a live Prometheus has of everything that we generate; what is empty, by name."""

from __future__ import annotations

import time

from sre.monitoring.catalogue_rules import all_alerts, all_records
from sre.monitoring.model import Record
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.live.operands import names, operands
from tests.support.prometheus import Prometheus

LOOK_BACK_SECONDS = 60.0


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
    """
    Alert → those of its operands that had no series in the last ``LOOK_BACK_SECONDS``.

    Not now only: rules over traffic, the only ones without a card, are not judged while a breaker is open, as it is at
    some time of a hang.
    """
    known: dict[str, bool] = {}
    end = time.time()

    def empty(operand: str) -> bool:
        if operand not in known:
            known[operand] = not prometheus.query_range(operand, end - LOOK_BACK_SECONDS, end, 1)
        return known[operand]

    found = {alert.name: set(filter(empty, operands(alert.expr.text))) for alert in all_alerts(settings)}
    return {alert: missing for alert, missing in found.items() if missing}


def metadata(prometheus: Prometheus) -> dict[str, str]:
    """Type of each metric family, as Prometheus got it."""
    data = prometheus.get("/api/v1/metadata").json()["data"]
    return {family: entries[0]["type"] for family, entries in data.items()}
