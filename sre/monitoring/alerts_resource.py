"""Alerts of the resource dimension: cards, then disks, networks and hosts."""

from __future__ import annotations

from sre.monitoring.alerts_gpu import gpu_alerts
from sre.monitoring.alerts_node import node_alerts
from sre.monitoring.model import Alert
from sre.monitoring.promql import Selection
from sre.settings.monitoring import MonitoringSettings


def alerts(selection: Selection, settings: MonitoringSettings) -> list[Alert]:
    """Cards first, then hosts."""
    return [*gpu_alerts(selection, settings), *node_alerts(selection, settings)]
