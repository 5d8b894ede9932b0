"""
Checks of Prometheus rules and Grafana dashboards, ours and anyone's.

``lint(text, path, options)`` returns findings; ``CHECKS`` lists every check. Texts are read by ``documents`` and
``rulefile``, expressions by ``syntax`` into a ``tree``, templates by ``template``; ``labels`` and ``quantities`` infer
what an expression returns; the checks themselves stand in the modules ``on_…``.
"""

from sre.monitoring.lint.checks import CHECKS
from sre.monitoring.lint.findings import Check, Finding, LintOptions, NotRules, Severity
from sre.monitoring.lint.linter import File, lint, lint_files

__all__ = ["CHECKS", "Check", "File", "Finding", "LintOptions", "NotRules", "Severity", "lint", "lint_files"]
