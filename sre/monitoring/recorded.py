"""Recorded series by name, and ``up``, as alerts use them."""

from __future__ import annotations

from sre.metrics.prometheus import UP
from sre.metrics.types import Exporter
from sre.monitoring import records_engine, records_resource
from sre.monitoring.levels import JOB
from sre.monitoring.promql import Expr, Selection, among
from sre.settings.monitoring import MonitoringSettings


class Recorded:
    """The recorded series of a name. Raises KeyError: no such record (for the chosen releases)."""

    def __init__(self, selection: Selection, settings: MonitoringSettings) -> None:
        every = (*records_resource.records(selection, settings), *records_engine.records(selection, settings))
        self._records = {record.name: record for record in every}

    def __call__(self, name: str, *matchers: str) -> Expr:
        return self._records[name](*matchers)


def up_of(selection: Selection, *exporters: Exporter) -> Expr:
    """``up`` of the exporters' targets."""
    return selection.gauge(UP, among(JOB, *(selection.jobs.get(exporter, exporter.value) for exporter in exporters)))
