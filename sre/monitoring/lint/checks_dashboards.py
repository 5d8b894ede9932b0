"""Checks of dashboards."""

from __future__ import annotations

from collections.abc import Iterator

from sre.monitoring.lint.findings import Check, Severity


def dashboard_checks() -> Iterator[Check]:
    """Ids, severities, why and remedy."""
    error, warning, info = Severity.ERROR, Severity.WARNING, Severity.INFO

    # ---- Dashboards
    yield Check(
        "dashboard/datasource-variable",
        warning,
        "Without a variable for the data source the dashboard works in one Grafana only.",
        "Add a variable of type datasource.",
    )
    yield Check(
        "dashboard/fixed-datasource",
        error,
        "A fixed data source, or __inputs, is not found in another Grafana.",
        "Use ${datasource} in every panel, target and variable.",
    )
    yield Check(
        "dashboard/variables",
        warning,
        "Without variables for job, model, instance or node a fleet's series lie on top of one another.",
        "Add the variable with a query of label_values().",
    )
    yield Check(
        "dashboard/variable-refresh",
        warning,
        "A query variable that is not refreshed with the time range shows instances that are gone, and misses"
        " new ones.",
        "Set refresh to 2.",
    )
    yield Check(
        "dashboard/variable-query",
        error,
        "A variable that asks for a metric or label that does not exist is empty, and so are all panels.",
        "Use label_values(metric, label) with names of the catalogue.",
    )
    yield Check(
        "dashboard/unused-variable",
        warning,
        "A variable that no query uses does nothing when it is changed.",
        "Use it in the matchers, or remove it.",
    )
    yield Check(
        "dashboard/matchers",
        warning,
        "A query without the matchers of the variables mixes what was not chosen.",
        'Add job=~"$job", instance=~"$instance" and the like.',
    )
    yield Check(
        "dashboard/title",
        warning,
        "A panel without a title says nothing.",
        "Add a title.",
    )
    yield Check(
        "dashboard/description",
        info,
        "Without a description nobody knows which metric is shown.",
        "Describe the panel and name its metric.",
    )
    yield Check(
        "dashboard/unit",
        warning,
        "Without a unit 0.5 may be seconds, bytes or a share.",
        "Set fieldConfig.defaults.unit.",
    )
    yield Check(
        "dashboard/no-value",
        info,
        "An empty panel does not say whether there is no traffic or no metric.",
        "Set fieldConfig.defaults.noValue.",
    )
    yield Check(
        "dashboard/targets",
        error,
        "A panel without a query shows nothing.",
        "Add a target with an expression.",
    )
    yield Check(
        "dashboard/rate-interval",
        warning,
        "A fixed range, or $__interval, in rate() is empty or hides peaks when the time range changes.",
        "Use rate(x[$__rate_interval]).",
    )
    yield Check(
        "dashboard/editable",
        info,
        "What is generated and edited by hand is lost at the next import.",
        "Set editable to false.",
    )
    yield Check(
        "dashboard/panel-id",
        warning,
        "Panels without a unique id lose links and annotations at every import.",
        "Give each panel a number of its own.",
    )
    yield Check(
        "dashboard/uid",
        warning,
        "Without a fixed uid links to the dashboard break at every import.",
        "Set uid.",
    )
