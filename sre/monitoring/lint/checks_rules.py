"""Checks of files, alerts, rules and groups."""

from __future__ import annotations

from collections.abc import Iterator

from sre.monitoring.lint.findings import Check, Severity


def file_checks() -> Iterator[Check]:
    """Ids, severities, why and remedy."""
    error, warning = Severity.ERROR, Severity.WARNING

    # ---- The file
    yield Check(
        "file/syntax",
        error,
        "What is no YAML or JSON is loaded by nobody.",
        "Correct the text at this place; check indentation and quotes.",
    )
    yield Check(
        "file/structure",
        error,
        "Prometheus refuses a file whose parts have the wrong form, and then none of its rules runs.",
        "Give the part the form that Prometheus documents.",
    )
    yield Check(
        "file/unknown-key",
        error,
        "Prometheus refuses a key it does not know; a typing error in an optional one loses its meaning.",
        "Correct the key, or remove it.",
    )
    yield Check(
        "file/duplicate-key",
        error,
        "Of a key given twice one value is lost; Prometheus refuses the file.",
        "Remove one of the two.",
    )
    yield Check(
        "file/yaml-type",
        warning,
        "YAML reads an unquoted no, on, 1.0 or null as something else than text, and Kubernetes refuses it as a label.",
        "Put the value in quotes.",
    )
    yield Check(
        "file/disable-comment",
        error,
        "A disabled check without a reason, or with a wrong name, is forgotten or does nothing.",
        "Write: # sre-lint: disable=family/check why this is right here",
    )


def rule_checks() -> Iterator[Check]:
    """Ids, severities, why and remedy."""
    error, warning, info = Severity.ERROR, Severity.WARNING, Severity.INFO

    # ---- Alerts
    yield Check(
        "alert/no-condition",
        error,
        "An expression without a condition fires for every series, always.",
        "Compare it with a threshold.",
    )
    yield Check(
        "alert/for-missing",
        warning,
        "Without for one bad scrape fires the alert.",
        "State for; 0s where it is meant.",
    )
    yield Check(
        "alert/for-range",
        warning,
        "A for below the scrape interval (two of them with absent) filters nothing; one above a day fires too late.",
        "Choose a for between two scrape intervals and a day.",
    )
    yield Check(
        "alert/absent-without-for",
        error,
        "absent() is true during every restart of Prometheus or of the target.",
        "Give the alert a for of some minutes.",
    )
    yield Check(
        "alert/keep-firing-for",
        warning,
        "A burn alert's short window resets it; keep_firing_for keeps people awake after the end.",
        "Remove keep_firing_for here; it is for events.",
    )
    yield Check(
        "alert/name",
        warning,
        "A name that is long, or not CamelCase, breaks routes, runbook files and anchors.",
        "Use CamelCase of at most 40 characters.",
    )
    yield Check(
        "alert/severity",
        warning,
        "Alertmanager routes by severity: an alert without one, or with an unknown one, reaches the default receiver.",
        "Set severity to page, ticket or info (or critical, warning, info).",
    )
    yield Check(
        "alert/summary",
        warning,
        "Without a summary the message says only a name.",
        "Add a summary of one sentence.",
    )
    yield Check(
        "alert/description",
        warning,
        "Without a description nobody knows what was measured.",
        "Add a description with the value and the labels.",
    )
    yield Check(
        "alert/runbook-url",
        warning,
        "An alert without a runbook leaves its reader alone at night.",
        "Add runbook_url.",
    )
    yield Check(
        "alert/dimension",
        warning,
        "Where alerts carry the label dimension, routes and dashboards go by it: one without it is in none of them.",
        "Set dimension to resource, batching, request or slo.",
    )
    yield Check(
        "alert/dashboard-url",
        warning,
        "Where alerts lead to a dashboard, the one that does not costs its reader a search.",
        "Add the annotation dashboard_url.",
    )
    yield Check(
        "alert/xid-keep-firing-for",
        warning,
        "An XID is a moment: changes() and increase() forget it after their range, and the alert resolves while the"
        " card is as broken as before.",
        "Add keep_firing_for of some minutes (Prometheus 2.42), so that somebody can look.",
    )
    yield Check(
        "alert/runbook-anchor",
        warning,
        "An anchor in another case than the heading's opens the page at its top.",
        "Use the alert's name in lower case.",
    )
    yield Check(
        "alert/runbook-file",
        error,
        "A runbook that does not exist or lacks its parts helps nobody.",
        "Write the file with the headings Meaning, Impact, Diagnosis and Mitigation.",
    )
    yield Check(
        "alert/runbook-labels",
        error,
        "A runbook command with a label that the alert does not carry cannot be filled in.",
        "Use labels of the alert, or keep them in the expression.",
    )
    yield Check(
        "alert/template",
        error,
        "Prometheus shows <error expanding template> instead of the text.",
        "Correct the template.",
    )
    yield Check(
        "alert/label-lost",
        error,
        "A label that the expression does not keep is shown as nothing.",
        "Keep it in by (…), or leave it out of the text.",
    )
    yield Check(
        "alert/value-in-label",
        error,
        "A value in a label makes a new alert at every evaluation: for never ends and messages repeat.",
        "Put the value into an annotation.",
    )
    yield Check(
        "alert/humanize",
        info,
        "A raw $value is shown with all its digits.",
        "Write {{ $value | humanize }}, humanizePercentage or humanizeDuration.",
    )

    # ---- Rules and groups
    yield Check(
        "rule/external-label",
        error,
        "external_labels belong to the Prometheus; a rule that sets one collides with it.",
        "Remove the label from the rule.",
    )
    yield Check(
        "rule/duplicate",
        error,
        "Two rules of one name and one label set write the same series, or notify twice.",
        "Remove one, or give them different labels.",
    )
    yield Check(
        "rule/dependency",
        error,
        "A record that no linted file defines is empty for ever.",
        "Define it, correct its name, or lint the file that defines it along.",
    )
    yield Check(
        "rule/order",
        warning,
        "Rules of a group run in order: an expression above its record sees the value of the evaluation before.",
        "Put the record above what uses it.",
    )
    yield Check(
        "rule/record-name",
        warning,
        "Records are named level:metric:operation so that a reader knows their labels.",
        "Use exactly two colons, lower case.",
    )
    yield Check(
        "rule/record-level",
        warning,
        "The level in a record's name says which labels it has; a wrong one misleads every join.",
        "Make level and by (…) agree.",
    )
    yield Check(
        "group/size",
        warning,
        "A large group is evaluated one rule after the other and misses its interval.",
        "Split it at 20 rules.",
    )
    yield Check(
        "group/interval",
        warning,
        "Above five minutes series go stale between two evaluations.",
        "Use an interval of at most 5m.",
    )
    yield Check(
        "group/newer-key",
        error,
        "A group key that the Prometheus does not know makes it refuse the file.",
        "Remove the key, or raise --prometheus-version.",
    )
    yield Check(
        "group/duplicate",
        error,
        "Two groups of one name in a file are refused.",
        "Rename one.",
    )
