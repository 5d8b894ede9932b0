"""Every check of ``sre rules lint``, in one place: id, severity, why, remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sre.monitoring.lint.findings import Check, Severity


def _checks() -> Iterator[Check]:
    error, warning, info = Severity.ERROR, Severity.WARNING, Severity.INFO

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

    # ---- Expressions: grammar
    yield Check(
        "expression/syntax",
        error,
        "What is no PromQL never runs.",
        "Correct the expression; promtool check rules says more.",
    )
    yield Check(
        "expression/grammar",
        error,
        "Grammar newer (or older) than the Prometheus that must read it makes it refuse the whole file.",
        "Write it with what that release has, or raise --prometheus-version.",
    )
    yield Check(
        "expression/experimental-function",
        warning,
        "Experimental functions need a feature flag and may change or go in any release.",
        "Use a stable function.",
    )
    yield Check(
        "expression/needless-regex",
        info,
        "A regular expression where = would do costs time and hides what is meant.",
        "Use = or != instead.",
    )
    yield Check(
        "expression/name-regex",
        error,
        "A selection by {__name__=~…} is refused by some backends and reads every series' name.",
        "Name the metric, or join metrics with or.",
    )

    # ---- Expressions: metrics and their types
    yield Check(
        "expression/counter-without-rate",
        error,
        "A counter's value says how old the process is, and falls to 0 at every restart.",
        "Take rate() or increase() first, then aggregate.",
    )
    yield Check(
        "expression/rate-of-gauge",
        error,
        "rate() takes each fall of a gauge for a restart and invents growth.",
        "Use deriv(), delta() or the gauge itself; for events, changes().",
    )
    yield Check(
        "expression/rate-of-rate",
        error,
        "These DCGM fields are typed as counters but are rates already: rate() of them is nonsense.",
        "Use the value itself, or avg_over_time().",
    )
    yield Check(
        "expression/rate-of-sum",
        error,
        "A sum over counters falls when one restarts, and rate() takes the whole sum for new events.",
        "Rate first, sum after: sum(rate(x[5m])).",
    )
    yield Check(
        "expression/short-range",
        error,
        "A range below two scrape intervals holds fewer than two samples: the result is empty.",
        "Take a range of at least four scrape intervals.",
    )
    yield Check(
        "expression/tight-range",
        warning,
        "A range below four scrape intervals is empty as soon as scrapes are lost; Prometheus 3 leaves the "
        "left edge out as well.",
        "Take a range of at least four scrape intervals.",
    )
    yield Check(
        "expression/range-beyond-retention",
        error,
        "Prometheus answers from what it still has: a range longer than its retention lies silently.",
        "Record increases and sum them, shorten the range, or keep data longer.",
    )
    yield Check(
        "expression/unknown-metric",
        error,
        "A metric that its exporter does not expose gives an expression that is empty for ever.",
        "Correct the name; sre rules verify shows what is exposed.",
    )
    yield Check(
        "expression/removed-metric",
        error,
        "A metric that newer releases removed gives no data, and an alert on it stays quiet.",
        "Use the successor, or join both: new or old.",
    )
    yield Check(
        "expression/deprecated-metric",
        warning,
        "A deprecated metric is hidden in the next release and gone in the one after.",
        "Use the successor, or join both: new or old.",
    )
    yield Check(
        "expression/type",
        error,
        "A histogram or counter family has no sample of its bare name; functions for buckets need buckets.",
        "Use …_bucket, …_sum, …_count or …_total.",
    )
    yield Check(
        "expression/frozen-gauge",
        warning,
        "An engine that hangs freezes its gauges, often at 0: running > 0 and no tokens misses real hangs.",
        "Pair requests in flight counted outside the engine (gateway) with a flat count of engine steps.",
    )
    yield Check(
        "expression/abort-reason",
        error,
        'vLLM leaves finished_reason="abort" at 0: aborted requests are in no metric of a request.',
        "Count aborts at the gateway (sre_client_aborts_total).",
    )
    yield Check(
        "expression/xid-latch",
        error,
        "The last XID stays on the card's gauge for ever: > 0 alone never resolves.",
        "Add changes(): x > 0 and changes(x[5m]) > 0, with keep_firing_for.",
    )
    yield Check(
        "expression/utilization-high",
        warning,
        "GPU utilisation is 100 % with a single request: a high value is no fault.",
        "Alert on latency or queue; utilisation only when it is low under load.",
    )

    # ---- Expressions: labels
    yield Check(
        "expression/unknown-label",
        warning,
        "A label that the metric does not have selects nothing, or groups all into one.",
        "Use a label of the metric, or tell the lint about your target labels.",
    )
    yield Check(
        "expression/label-stripped",
        error,
        "An aggregation further inside has removed the label: grouping or matching by it finds nothing.",
        "Keep the label in the inner by (…), or leave it out here.",
    )
    yield Check(
        "expression/label-mismatch",
        error,
        "Operands match on equal label sets: where they differ the result is always empty.",
        "Aggregate both sides by the same labels, or match with on (…).",
    )
    yield Check(
        "expression/quantile-without-le",
        error,
        "histogram_quantile needs the label le; without it the result is empty.",
        "Write sum by (le, …) (rate(x_bucket[5m])).",
    )
    yield Check(
        "expression/pod-or-hostname",
        warning,
        "pod and Hostname of the DCGM exporter are empty, renamed or move with the pod.",
        "Normalise to node and gpu in a record, and select by these.",
    )

    # ---- Expressions: values
    yield Check(
        "expression/unit",
        error,
        "A threshold in another unit than the metric never or always holds.",
        "Write the threshold in the metric's unit.",
    )
    yield Check(
        "expression/unit-mix",
        error,
        "Values of different units in one result differ by orders of magnitude without notice.",
        "Scale one of them.",
    )
    yield Check(
        "expression/impossible",
        error,
        "A condition that can never hold gives an alert that never fires.",
        "Correct the comparison.",
    )
    yield Check(
        "expression/nan-not-equal",
        error,
        "0/0 is NaN, and NaN != x is true: without traffic the alert fires.",
        "Guard the denominator with > 0, or compare with < and >.",
    )
    yield Check(
        "expression/unguarded-division",
        warning,
        "Without traffic the quotient is NaN, which poisons every sum and average it enters.",
        "Write a / (b > 0).",
    )
    yield Check(
        "expression/ratio-summed",
        error,
        "A sum of ratios, percentages or temperatures means nothing.",
        "Use avg, max or min, or sum numerator and denominator first.",
    )
    yield Check(
        "expression/quantile-aggregated",
        error,
        "An average or sum of quantiles is no quantile.",
        "Sum the buckets by le, then take histogram_quantile once; or take max.",
    )
    yield Check(
        "expression/bucket-edge",
        error,
        "Between two bucket edges a quantile is a guess, and beyond the first or last it is capped; a le that"
        " is no edge selects nothing.",
        "Use a bucket edge, neither the first nor the last.",
    )
    yield Check(
        "expression/integer-le",
        error,
        'Prometheus 3 writes le="1" as le="1.0": an equality on a whole number selects nothing there, or here.',
        'Write le=~"1(\\\\.0)?".',
    )
    yield Check(
        "expression/burn-factor",
        error,
        "An error ratio never exceeds 1: burn factor times (1 - SLO) at 1 or above never fires.",
        "Drop this row, or raise the objective.",
    )
    yield Check(
        "expression/low-traffic-guard",
        warning,
        "With few requests one failure exceeds the burn threshold and pages somebody.",
        "Add a minimum of bad events: and sum by (…) (increase(bad_total[1h])) >= 5.",
    )
    yield Check(
        "expression/quantile-in-burn",
        warning,
        "A quantile in a burn-rate condition moves in steps of buckets and does not add up over windows.",
        "Use 1 - rate(bucket{le=…}) / rate(count).",
    )
    yield Check(
        "expression/fragile",
        warning,
        "topk in an alert changes its series at every evaluation; dividing two jobs without for fires at "
        "every restart of one.",
        "Compare every series with a threshold; give the alert a for.",
    )
    yield Check(
        "expression/absent-of-sli",
        error,
        "A counter without traffic may be absent in peace: the alert fires while all is well.",
        "Ask for absence of up only, or: absent_over_time(x[15m]) and on () up{…} == 1.",
    )
    yield Check(
        "expression/down-without-absent",
        warning,
        "When all targets leave discovery, sum(up) is empty and never 0: the outage stays quiet.",
        "Join it with or absent(up{…}), or give absence an alert of its own.",
    )

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


CHECKS: Mapping[str, Check] = {check.id: check for check in _checks()}
"""Every check by id, in the order in which they are listed."""
