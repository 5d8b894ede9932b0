"""Every check of ``sre rules lint``, in one place: id, severity, why, remedy."""

from __future__ import annotations

from collections.abc import Mapping

from sre.monitoring.lint.checks_dashboards import dashboard_checks
from sre.monitoring.lint.checks_expressions import expression_checks
from sre.monitoring.lint.checks_rules import file_checks, rule_checks
from sre.monitoring.lint.findings import Check

CHECKS: Mapping[str, Check] = {
    check.id: check for check in (*file_checks(), *expression_checks(), *rule_checks(), *dashboard_checks())
}
"""Every check by id, in the order in which they are listed."""
