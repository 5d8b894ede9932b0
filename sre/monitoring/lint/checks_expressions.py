"""Checks of expressions: grammar, metrics, labels, values."""

from __future__ import annotations

from collections.abc import Iterator

from sre.monitoring.lint.findings import Check, Severity


def expression_checks() -> Iterator[Check]:
    """Ids, severities, why and remedy."""
    error, warning, info = Severity.ERROR, Severity.WARNING, Severity.INFO

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

    yield Check(
        "expression/device-doubled",
        warning,
        "With MIG, time slicing or several containers the DCGM exporter gives one card several series: sum and count"
        " count it as often.",
        "Take the maximum of each card first: sum by (node) (max by (node, UUID) (x)).",
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
