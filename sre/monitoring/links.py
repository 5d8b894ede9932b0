"""Where an alert points: its runbook and its dashboard."""

from sre.monitoring.render import dashboard_url, runbook_url

__all__ = ["dashboard_url", "runbook_url"]
