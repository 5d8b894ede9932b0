"""The dashboards as they are generated with every default, and as Grafana gets them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sre.monitoring.dashboards.catalogue import all_dashboards
from sre.monitoring.dashboards.document import render
from sre.monitoring.dashboards.model import Dashboard
from sre.settings.monitoring import MonitoringSettings
from tests.cli.conftest import run_sre

__all__ = ["run_sre"]

EVERYTHING = MonitoringSettings(retention_days=3650, runbook_base_url="https://runbooks.example/sre")
"""Settings with which nothing is left out."""


@pytest.fixture(scope="session")
def dashboards() -> tuple[Dashboard, ...]:
    """With every default: what is committed."""
    return all_dashboards(MonitoringSettings())


@pytest.fixture(scope="session")
def documents() -> dict[str, dict[str, Any]]:
    """uid → JSON, of the largest possible dashboards."""
    return {one.uid: json.loads(render(one, EVERYTHING)) for one in all_dashboards(EVERYTHING)}
