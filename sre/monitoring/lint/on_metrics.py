"""Checks of metrics: do they exist, and is each used as its type demands?"""

from __future__ import annotations

from sre.metrics.catalogue import CATALOGUE, VLLM_PREFIX
from sre.metrics.types import Exporter, Kind, Metric, Version
from sre.monitoring.lint.known import COUNTER_ENDINGS, SampleType
from sre.monitoring.lint.subject import Role, Subject, comparison
from sre.monitoring.lint.syntax import VARIABLE
from sre.monitoring.lint.tree import Aggregate, Binary, Call, Negative, Node, Selector, Subquery, selectors_in, walk

RATES = frozenset({"rate", "irate", "increase"})
_COUNTER_FUNCTIONS = RATES | {"resets"}
_TWO_SAMPLES = _COUNTER_FUNCTIONS | {"delta", "idelta", "deriv", "changes", "predict_linear"}
_GAUGE_FUNCTIONS = frozenset(
    {"delta", "idelta", "deriv", "predict_linear", "avg_over_time", "sum_over_time", "quantile_over_time",
     "stddev_over_time", "stdvar_over_time", "min_over_time"}
)  # fmt: skip
_EXISTENCE = frozenset(
    {"absent", "absent_over_time", "timestamp", "count_over_time", "present_over_time", "changes", "resets"}
)
_PASSING = frozenset({"label_replace", "label_join", "sort", "sort_desc", "last_over_time", "max_over_time"})
_TOKEN_FLOW = ("vllm:generation_tokens_total", "vllm:iteration_tokens_total_count", "vllm:prompt_tokens_total")
_COMPLETE = {VLLM_PREFIX: Exporter.VLLM, "sre_": Exporter.SRE}
"""Prefixes whose every name is in the catalogue. Others may use ``sre_``, too: only near misses of ours count there."""
_RUNNING = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def check(subject: Subject) -> None:
    """Existence, type, ranges and the traps of single metrics."""
    for index, (node, _) in enumerate(subject.parsed.nodes):
        if isinstance(node, Selector) and node.name:
            _name(subject, index, node)
            _abort(subject, node)
            if node.range_seconds is None:
                _counter(subject, index, node)
        elif isinstance(node, Call):
            _range_call(subject, node)
            if node.function == "histogram_quantile":
                _buckets(subject, node)
    if subject.role is Role.ALERT:
        _frozen(subject)


def check_names(subject: Subject) -> None:
    """Only: do the metrics exist?"""
    for index, (node, _) in enumerate(subject.parsed.nodes):
        if isinstance(node, Selector) and node.name:
            _name(subject, index, node)


# ---- Names ----------------------------------------------------------------------------------------------------------


def _name(subject: Subject, index: int, selector: Selector) -> None:
    names = subject.tools.names
    name = selector.name
    if VARIABLE.search(name) or name == "stand_in":
        return
    metric = names.metric(name)
    if metric is None:
        _unknown(subject, name)
        return
    if not names.owned(name):
        return
    successor = CATALOGUE.successor(metric)
    exporter, release = metric.exporter.value, names.options.versions.get(metric.exporter)
    gone = not names.available(metric)
    if not gone and (
        metric.deprecated is None or successor is None or not _is_deprecated_in(metric, successor, release)
    ):
        return
    if _has_fallback(subject, index, metric, successor):
        return
    remedy = _successor_remedy(name, metric, successor)
    if not gone:
        message = f"{name} is deprecated since {exporter} {metric.deprecated}"
        subject.note("expression/deprecated-metric", message, name, remedy)
    elif metric.exporter is Exporter.DCGM and release is None:
        # Both generations are in use: neither name alone is right everywhere.
        message = f"{name} is gone from {exporter} {metric.removed} on"
        subject.note("expression/deprecated-metric", message, name, remedy)
    elif metric.removed is not None and (release is None or release >= metric.removed):
        subject.note("expression/removed-metric", f"{name} is gone since {exporter} {metric.removed}", name, remedy)
    else:
        message = f"{name} exists since {exporter} {metric.since}, and {release} is in use"
        subject.note("expression/removed-metric", message, name, "Use the name of that release, or raise its version.")


def _is_deprecated_in(metric: Metric, successor: Metric, release: Version | None) -> bool:
    """Whether the release in use has deprecated the metric, and has the successor that is to be used instead."""
    return release is None or (
        metric.deprecated is not None and release >= metric.deprecated and successor.exists_in(release)
    )


def _successor_remedy(name: str, metric: Metric, successor: Metric | None) -> str:
    if successor is None:
        return "Nothing replaces it; remove it."
    ending = next((part for part in ("_bucket", "_sum", "_count") if name.endswith(part)), "")
    new = successor.name + ending if successor.kind is Kind.HISTOGRAM and ending else successor.sample
    unit = "" if successor.unit is metric.unit else f" ({successor.unit.value}, not {metric.unit.value})"
    return f"Use {new}{unit}, or join both: {new} or {name}."


def _has_fallback(subject: Subject, index: int, metric: Metric, successor: Metric | None) -> bool:
    """Whether an ``or`` above joins it with its successor, or another of the same line."""
    names = subject.tools.names
    line = {metric.name, successor.name} if successor is not None else {metric.name}
    for below, above in subject.parsed.parents(index):
        if not isinstance(above, Binary) or above.operator != "or":
            continue
        other = above.right if above.left is below else above.left
        for selector in selectors_in(other):
            relative = names.metric(selector.name)
            if relative is None:
                if selector.name.count(":") == 2:
                    return True  # a record stands in for it
                continue
            related = CATALOGUE.successor(relative) or relative
            if relative.name != metric.name and (related.name in line or relative.exporter is not metric.exporter):
                return True
    return False


def _unknown(subject: Subject, name: str) -> None:
    names = subject.tools.names
    plain_name = names.vllm_name(name)
    family = CATALOGUE.family(plain_name)
    if family is not None and names.owned(name):
        if family.kind is Kind.HISTOGRAM:
            remedy = f"Use {family.name}_bucket, {family.name}_sum or {family.name}_count."
        else:
            remedy = f"Use {family.sample}."
        subject.note("expression/type", f"{name} is a {family.kind.value} and has no sample of that name", name, remedy)
        return
    if name.endswith("_created") and CATALOGUE.family(plain_name.removesuffix("_created")) is not None:
        return
    trimmed = plain_name.removesuffix("_total")
    base = CATALOGUE.by_sample(trimmed)
    if base is not None and plain_name != trimmed and names.owned(name):
        subject.note("expression/type", f"{name} does not exist: {trimmed} has no _total", name, f"Use {trimmed}.")
        return
    exporter = next((one for prefix, one in _COMPLETE.items() if plain_name.startswith(prefix)), None)
    if exporter is None:
        return
    hint = subject.report.near(plain_name, [one for metric in CATALOGUE.of(exporter) for one in metric.samples], 0.75)
    if exporter is Exporter.VLLM or hint:
        who = "vLLM" if exporter is Exporter.VLLM else "this toolkit"
        subject.note("expression/unknown-metric", f"{who} exposes no {name}{hint}", name)


# ---- Types ----------------------------------------------------------------------------------------------------------


def _counter(subject: Subject, index: int, selector: Selector) -> None:
    """A counter that is neither rated nor only asked whether it is there."""
    names = subject.tools.names
    if names.type_of(selector.name) is not SampleType.COUNTER:
        return
    used = False
    for below, above in subject.parsed.parents(index):
        match above:
            case Call(function=function):
                if function in _EXISTENCE:
                    return
                used = used or function not in _PASSING
                if function == "histogram_quantile":
                    break
            case Aggregate(operator=operator):
                if operator in ("count", "group"):
                    return
                used = True
            case Subquery():
                return  # a rate of a sum is another check's
            case Binary(operator=operator):
                if operator in ("and", "unless") and (above.right is below or _newborn(above, selector)):
                    return
                used = used or operator not in ("and", "or", "unless")
            case Negative():
                used = True
    if subject.role is Role.RECORD and subject.what.endswith(COUNTER_ENDINGS):
        return  # it says that it is a counter; what takes its rate is told of the sum
    metric = names.metric(selector.name)
    if used or subject.role is not Role.RECORD:
        kind = "a histogram's counter" if metric is not None and metric.kind is Kind.HISTOGRAM else "a counter"
        subject.note(
            "expression/counter-without-rate", f"{selector.name} is {kind}, and its value itself is used", selector.name
        )


def _newborn(node: Binary, selector: Selector) -> bool:
    """``x unless x offset 5m``: the value of a counter that was just born is its growth."""
    return node.operator == "unless" and any(
        one.name == selector.name and one.offset_seconds > selector.offset_seconds for one in selectors_in(node.right)
    )


def _range_call(subject: Subject, call: Call) -> None:
    inner = next((arg for arg in call.args if isinstance(arg, Selector | Subquery)), None)
    if isinstance(inner, Subquery):
        if call.function in _COUNTER_FUNCTIONS:
            _rate_of_sum(subject, call, inner.expr)
        return
    if inner is None or inner.range_seconds is None:
        return
    _range(subject, call, inner)
    names = subject.tools.names
    metric = names.metric(inner.name)
    kind = names.type_of(inner.name)
    if call.function in RATES and metric is not None and metric.rate_already:
        subject.note(
            "expression/rate-of-rate", f"{call.function}() of {inner.name}, which is a rate already", inner.name
        )
    elif call.function in _COUNTER_FUNCTIONS and metric is not None and kind is SampleType.GAUGE:
        subject.note("expression/rate-of-gauge", f"{call.function}() of {inner.name}, which is a gauge", inner.name)
    elif call.function in _GAUGE_FUNCTIONS and kind is SampleType.COUNTER:
        subject.note(
            "expression/counter-without-rate",
            f"{call.function}() of {inner.name}, a counter, mistakes restarts for values", inner.name,
        )  # fmt: skip
    elif call.function in _COUNTER_FUNCTIONS and inner.name in names.records:
        _rate_of_sum(subject, call, names.records[inner.name].root, inner.name)


def _rate_of_sum(subject: Subject, call: Call, inner: Node, record: str = "") -> None:
    """``rate(sum(counter)[5m:])``, or of a record that is such a sum."""
    names = subject.tools.names
    aggregates = [node for node in walk(inner) if isinstance(node, Aggregate) and node.operator in ("sum", "avg")]
    if not aggregates or any(isinstance(node, Call) and node.function in RATES for node in walk(inner)):
        return
    raw = [one for one in selectors_in(inner) if names.type_of(one.name) is SampleType.COUNTER]
    if raw:
        of = f"record {record}, which is" if record else ""
        subject.note(
            "expression/rate-of-sum",
            f"{call.function}() of {of} a {aggregates[0].operator} of the counter {raw[0].name}".replace("  ", " "),
            record or raw[0].name,
        )


def _range(subject: Subject, call: Call, selector: Selector) -> None:
    if call.function not in _TWO_SAMPLES or selector.range_seconds is None or subject.role is Role.PANEL:
        return
    interval = subject.report.options.scrape_interval_seconds
    text = f"{call.function}() over {selector.range_seconds:g}s at a scrape interval of {interval:g}s"
    if selector.range_seconds < 2 * interval:
        subject.note("expression/short-range", text, selector.name)
    elif selector.range_seconds < 4 * interval:
        subject.note("expression/tight-range", text, selector.name)


def _buckets(subject: Subject, call: Call) -> None:
    names = subject.tools.names
    for selector in selectors_in(call.args[-1]):
        metric = names.metric(selector.name)
        if metric is not None and not selector.name.endswith("_bucket"):
            remedy = f"Use {metric.name}_bucket." if metric.kind is Kind.HISTOGRAM else "It has no buckets."
            subject.note("expression/type", f"histogram_quantile() of {selector.name}", selector.name, remedy)


# ---- Traps of single metrics ----------------------------------------------------------------------------------------


def _abort(subject: Subject, selector: Selector) -> None:
    for matcher in selector.matchers:
        if (
            matcher.label == "finished_reason"
            and matcher.operator in ("=", "=~")
            and "abort" in matcher.value.split("|")
            and subject.tools.names.vllm_name(selector.name).startswith(VLLM_PREFIX)
        ):
            subject.note("expression/abort-reason", 'finished_reason="abort" stays 0 in vLLM', "finished_reason")


def _frozen(subject: Subject) -> None:
    plain = subject.tools.names.vllm_name
    running = flat = False
    for node, _ in subject.parsed.nodes:
        found = comparison(node)
        if found is None:
            continue
        inside = {plain(selector.name) for selector in selectors_in(found[0])}
        running = running or (found[1] in (">", ">=", "!=") and not inside.isdisjoint(_RUNNING))
        flat = flat or (found[1] in ("==", "<", "<=") and found[2] <= 0.01 and not inside.isdisjoint(_TOKEN_FLOW))
    if running and flat:
        subject.note("expression/frozen-gauge", "takes the engine's own gauge for requests in flight", _RUNNING[0])
