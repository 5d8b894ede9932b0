"""All dashboards for given settings, in the order in which people look at them."""

from __future__ import annotations

from dataclasses import replace

from sre.monitoring.dashboards.batching import batching
from sre.monitoring.dashboards.breaker import breaker
from sre.monitoring.dashboards.model import Dashboard, Panel
from sre.monitoring.dashboards.overview import overview
from sre.monitoring.dashboards.request import request
from sre.monitoring.dashboards.resource import resource
from sre.monitoring.dashboards.slo import slo
from sre.monitoring.dashboards.sources import Sources, sources
from sre.settings.monitoring import MonitoringSettings


def all_dashboards(settings: MonitoringSettings) -> tuple[Dashboard, ...]:
    """
    Every dashboard. Panels name only alerts that can fire with these settings.

    Raises:
        ExpressionError, ValueError: The settings give no rules; a sentence with the setting.
    """
    from_ = sources(settings)
    return tuple(_pruned(make(from_), from_) for make in (overview, resource, batching, request, slo, breaker))


def _pruned(dashboard: Dashboard, from_: Sources) -> Dashboard:
    rows = tuple(replace(row, panels=tuple(_panel(panel, from_) for panel in row.panels)) for row in dashboard.rows)
    return replace(dashboard, rows=tuple(row for row in rows if row.panels))


def _panel(panel: Panel, from_: Sources) -> Panel:
    limits = tuple(
        limit if limit.alert in from_.alerts or not limit.alert else replace(limit, alert="") for limit in panel.limits
    )
    return replace(panel, limits=limits, alerts=tuple(alert for alert in panel.alerts if alert in from_.alerts))
