"""Records of the resource dimension: one series per card, disk, network interface and host, whoever reads it."""

from __future__ import annotations

from sre.monitoring.model import Record
from sre.monitoring.promql import Selection
from sre.monitoring.records_gpu import card_records
from sre.monitoring.records_node import host_records
from sre.settings.monitoring import MonitoringSettings


def records(selection: Selection, settings: MonitoringSettings) -> list[Record]:
    """Cards first, then hosts."""
    return [*card_records(selection), *host_records(selection)]
