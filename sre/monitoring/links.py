"""Where an alert points: runbook and dashboard; and the labels and annotations its rule carries."""

from __future__ import annotations

from sre.monitoring.model import Alert
from sre.settings.monitoring import MonitoringSettings


def runbook_url(alert: str, settings: MonitoringSettings) -> str:
    """The alert's page, at its title: pages are named as alerts, anchors in lower case."""
    return f"{settings.runbook_base_url.rstrip('/')}/{alert}.md#{alert.lower()}"


def dashboard_url(uid: str, settings: MonitoringSettings) -> str:
    """The dashboard's page in Grafana."""
    return f"{settings.grafana_url.rstrip('/')}/d/{uid}"


def rule_labels(alert: Alert) -> dict[str, str]:
    """Labels the rule adds to those of its expression."""
    return {
        "severity": alert.severity.value,
        "dimension": alert.dimension.value,
        "component": alert.component,
        **alert.labels,
    }


def rule_annotations(alert: Alert, settings: MonitoringSettings) -> dict[str, str]:
    """Annotations of the rule, templates unexpanded."""
    return {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": runbook_url(alert.name, settings),
        "dashboard_url": dashboard_url(alert.dashboard, settings),
    }
