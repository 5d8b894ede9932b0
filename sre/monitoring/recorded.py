"""Recorded series by name, and ``up``, as alerts use them."""

from __future__ import annotations

from collections.abc import Iterable

from sre.metrics.prometheus import UP
from sre.metrics.types import Exporter
from sre.monitoring import records_engine, records_resource
from sre.monitoring.levels import JOB
from sre.monitoring.model import Record
from sre.monitoring.promql import Expr, Selection, among
from sre.settings.monitoring import MonitoringSettings


class Recorded:
    """Recorded series by the record's name."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = {record.name: record for record in records}

    def __call__(self, name: str, *matchers: str) -> Expr:
        """Raises KeyError: no such record (for the chosen releases)."""
        return self._records[name](*matchers)

    def find(self, name: str) -> Expr | None:
        """None where the chosen releases have nothing to record."""
        record = self._records.get(name)
        return None if record is None else record()


def of_machines(selection: Selection, settings: MonitoringSettings) -> Recorded:
    """Of cards and hosts, and of the engines on them."""
    return Recorded((*records_resource.records(selection, settings), *records_engine.records(selection, settings)))


def up_of(selection: Selection, *exporters: Exporter) -> Expr:
    """``up`` of the exporters' targets."""
    return selection.gauge(UP, among(JOB, *(selection.jobs.get(exporter, exporter.value) for exporter in exporters)))
